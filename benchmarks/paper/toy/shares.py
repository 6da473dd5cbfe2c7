"""The fraction of seeds on which the toy problems end as in the paper, over seeds 0, 1, 2, ..."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from benchmarks.paper.toy.problems import (
    AUTHORS,
    CONVEX,
    NONCONVEX,
    PAPER,
    distances,
    run_logistic,
    run_regression,
)
from mtlkit.config.files import write_text

NEAR = 0.1
"""A task of a regression is solved if its feature ends this close to its optimum."""
CORRECT = 0.9
"""A task of the logistic problem is solved if this fraction of the test samples is correct."""


def cases() -> Iterator[tuple[str, str, Callable[[int], list[float]]]]:
    """Yield problem, row, and a function from a seed to both tasks' distances or accuracies."""
    for problem in (CONVEX, NONCONVEX):
        text = PAPER[problem.name]
        for settings, training, methods in (
            ("paper", text, ("sum", "rotograd")),
            ("paper, random start", replace(text, start="random"), ("rotograd",)),
            ("authors' code", AUTHORS, ("sum", "rotograd")),
        ):
            for method in methods:

                def regression(
                    seed: int, problem: Any = problem, method: str = method, training: Any = training
                ) -> list[float]:
                    return distances(problem, run_regression(problem, method, seed, training))

                yield problem.name, f"{method}, {settings}", regression
    for method in ("sum", "rotograd", "rotograd(start=random)"):

        def logistic(seed: int, method: str = method) -> list[float]:
            fitted = run_logistic(method, seed)
            return [fitted.accuracy(0), fitted.accuracy(1)]

        yield "logistic", method, logistic


def solved(problem: str, values: list[float]) -> bool:
    """Return whether both tasks are solved, given their distances or accuracies."""
    return min(values) > CORRECT if problem == "logistic" else max(values) < NEAR


def measure(output: Path, seeds: int = 200) -> dict[str, dict[str, Any]]:
    """Run what is not in ``output/shares.json`` yet, and return fractions with exact 95% intervals."""
    path = output / "shares.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for problem, row, run in cases():
        known = found.setdefault(problem, {}).get(row)
        if known is not None and known["seeds"] == seeds:
            continue
        outcomes = [run(seed) for seed in range(seeds)]
        number = sum(solved(problem, outcome) for outcome in outcomes)
        interval = binomtest(number, seeds).proportion_ci()
        found[problem][row] = {
            "seeds": seeds,
            "solved": number,
            "share": number / seeds,
            "low": interval.low,
            "high": interval.high,
            "outcomes": [[round(value, 4) for value in outcome] for outcome in outcomes],
        }
        write_text(path, json.dumps(found, indent=1))
        print(f"{problem}, {row}: {number} of {seeds}", flush=True)
    return found
