"""False findings and power of several rules over simulated comparisons.

Usage: python -m benchmarks.statistics [--comparisons N] [--output DIR]

No stored run is read: the rule is chosen here, before the results are looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.statistics.noise import KINDS, draw_runs
from benchmarks.statistics.rules import guarded, moderated_t, paired_t, sign_flips
from mtlkit.config.files import write_text
from mtlkit.report.significance import LEVEL, holm
from mtlkit.report.statistics import Floats

SEED, TASKS = 0, 4
SEEDS, METHODS, EFFECTS = (3, 5, 10), (3, 8, 20), (1, 2, 4)
RULES: dict[str, Callable[[Floats], Floats]] = {
    "paired t": paired_t,
    "moderated t": moderated_t,
    "moderated t, robust": partial(moderated_t, robust=True),
    "moderated t, shared reference": partial(moderated_t, shared=0.25, guard=True),
    "moderated t, robust, shared reference": partial(moderated_t, robust=True, shared=0.25, guard=True),
}
BEFORE = "paired t, methods x tasks (before)"
FLIPS = "sign flips"
CHOSEN = "larger of own and mean variance"
RULES[f"{CHOSEN}, all degrees of freedom"] = partial(guarded, all_degrees=True)
RULES[CHOSEN] = guarded
_MANY = 8
"""Sign flips of ten seeds are simulated for at most this many methods."""


def judge(runs: Floats, rule: str) -> tuple[Floats, Floats]:
    """Test simulated comparisons by a rule.

    Args:
        runs: (comparisons, 2 + methods, tasks, seeds); single-task networks, reference, methods.
        rule: a name of :data:`RULES`, :data:`BEFORE` or :data:`FLIPS`.

    Returns:
        Whether each endpoint's test is significant: (comparisons, methods against the reference, then
        reference and methods against single-task networks), and each task's: (comparisons, methods,
        tasks).
    """
    endpoint = runs.mean(2)
    by_task = runs[:, 2:] - runs[:, 1:2]
    families = endpoint[:, 2:] - endpoint[:, 1:2], endpoint[:, 1:] - endpoint[:, :1]
    methods, tasks = by_task.shape[1:3]
    if rule == BEFORE:  # one family for tasks and their mean, another for the single-task networks
        tests = np.concatenate([families[0][:, :, None], by_task], 2)
        first = holm(paired_t(tests).reshape(len(runs), -1)).reshape(tests.shape[:-1]) < LEVEL
        second = holm(paired_t(families[1])) < LEVEL
        return np.concatenate([first[..., 0], second], 1), first[..., 1:]
    if rule == FLIPS:
        return sign_flips(np.concatenate(families, 1)) < LEVEL, np.zeros(
            (len(runs), methods, tasks), bool
        )
    test = RULES[rule]
    found = holm(np.concatenate([test(family) for family in families], 1)) < LEVEL
    each = np.stack([test(by_task[:, :, task]) for task in range(tasks)], -1)
    return found, found[:, :methods, None] & (holm(each) * found.shape[1] < LEVEL)


def simulate(rule: str, kind: str, seeds: int, methods: int, comparisons: int) -> dict[str, float]:
    """Return the rates of any false finding, and the power, of a rule.

    The effects are in deviations of the paired difference to the reference. ``false`` is where nothing
    differs; ``false beside effects`` where half of the methods are better by four deviations on all
    tasks but the last, which nothing may find.
    """
    rng = np.random.default_rng([SEED, KINDS.index(kind), seeds, methods])
    runs = draw_runs(kind, comparisons, methods + 2, TASKS, seeds, rng)
    endpoint = runs.mean(2)
    deviation = float(np.sqrt((endpoint[:, 2] - endpoint[:, 1]).var(-1, ddof=1).mean()))
    found, tasks = judge(runs, rule)
    result = {"false": float((found.any(1) | tasks.any((1, 2))).mean())}
    half = np.arange(methods) < (methods + 1) // 2
    shifted = runs.copy()
    shifted[:, 2:][:, half, :-1] += 4 * deviation * TASKS / (TASKS - 1)
    found, tasks = judge(shifted, rule)
    null = np.concatenate([~half, [True], ~half])
    false = found[:, null].any(1) | tasks[:, ~half].any((1, 2)) | tasks[:, :, -1].any(1)
    result["false beside effects"] = float(false.mean())
    for effect in EFFECTS:
        shifted = runs.copy()
        shifted[:, 2] += effect * deviation
        found, tasks = judge(shifted, rule)
        result[f"power {effect}"] = float(found[:, 0].mean())
    result["power 4, a task"] = float(tasks[:, 0, 0].mean())
    return result


def table(comparisons: int) -> pd.DataFrame:
    """Return all rules under all kinds of noise."""

    def rows() -> Iterator[dict[str, Any]]:
        for seeds in SEEDS:
            for methods in METHODS:
                for kind in KINDS:
                    rules = [BEFORE, *RULES, *([FLIPS] if seeds < 10 or methods <= _MANY else [])]
                    for rule in rules:
                        key = {"rule": rule, "noise": kind, "seeds": seeds, "methods": methods}
                        number = comparisons if rule != FLIPS else comparisons // 4
                        yield key | simulate(rule, kind, seeds, methods, number)
                print(f"{seeds} seeds, {methods} methods", flush=True)

    return pd.DataFrame(rows())


def summarize(found: pd.DataFrame) -> pd.DataFrame:
    """Return the largest rate of false findings and the mean power, by rule and seeds."""
    by = found.groupby(["rule", "seeds"], sort=False)
    rates = {"false": "max", "false beside effects": "max"}
    return by.agg(
        rates | {name: "mean" for name in found if str(name).startswith("power")}
    ).reset_index()


def to_markdown(found: pd.DataFrame) -> str:
    """Return a table in GitHub's Markdown, with three decimals."""
    rows = [[f"{each:.3f}" if isinstance(each, float) else str(each) for each in row]
            for row in found.itertuples(index=False)]  # fmt: skip
    head = [list(map(str, found.columns)), [":--", *["--:"] * (found.shape[1] - 1)]]
    return "".join(f"| {' | '.join(row)} |\n" for row in head + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/statistics"))
    arguments = parser.parse_args()
    found = table(arguments.comparisons)
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_text(arguments.output / "table.csv", found.round(4).to_csv(index=False))
    chosen = found[found["rule"] == CHOSEN].drop(columns="rule")
    text = (
        f"Made by `python -m benchmarks.statistics --comparisons {arguments.comparisons}` (seed {SEED}, "
        f"{TASKS} tasks, level {LEVEL}). All rows: [table.csv](table.csv).\n\n"
        "## Rules\n\nLargest rate of any false finding over all kinds of noise and numbers of methods, "
        f"and mean power.\n\n{to_markdown(summarize(found))}\n## {CHOSEN}\n\n"
        f"{to_markdown(chosen)}"
    )
    write_text(arguments.output / "table.md", text)


if __name__ == "__main__":
    main()
