"""How often the toy problems end as the paper shows them, over seeds that nobody chose."""

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
"""A task is solved when its feature ends this close to its optimum ..."""
CORRECT = 0.9
"""... or when this share of the test samples is classified correctly."""


def cases() -> Iterator[tuple[str, str, Callable[[int], list[float]]]]:
    """Problem, row, and a function from a seed to both tasks' distances or accuracies."""
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


def solved(problem: str, figures: list[float]) -> bool:
    """Whether both tasks are solved."""
    return min(figures) > CORRECT if problem == "logistic" else max(figures) < NEAR


def measure(output: Path, seeds: int = 200) -> dict[str, dict[str, Any]]:
    """Run what is not in ``output/shares.json`` yet; shares with exact 95 % intervals."""
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
