"""The cost of each method: its runs, and the search for its settings before them."""

from __future__ import annotations

from dataclasses import dataclass

from mtlkit.report.results import Comparison, Run


@dataclass(frozen=True)
class Cost:
    """Seconds and optimizer steps of a method over all seeds.

    Attributes:
        label: of the method.
        runs: that finished.
        seconds, steps: of these runs; for single-task networks, of all of them.
        trials: of the search for its settings; 0 without one.
        tuning_seconds, tuning_steps: of these trials.
    """

    label: str
    runs: int
    seconds: float
    steps: int
    trials: int = 0
    tuning_seconds: float = 0.0
    tuning_steps: int = 0

    @property
    def total_seconds(self) -> float:
        """Seconds of runs and trials."""
        return self.seconds + self.tuning_seconds

    @property
    def total_steps(self) -> int:
        """Steps of runs and trials."""
        return self.steps + self.tuning_steps


def method_costs(comparison: Comparison) -> list[Cost]:
    """Sum up the cost of each method with a finished run that was timed.

    >>> from mtlkit.report import Comparison, Run
    >>> runs = [Run("sum", seed, seconds=2.0, steps=10) for seed in range(3)]
    >>> method_costs(Comparison("digits", [], runs))[0].total_seconds
    6.0
    """
    found = []
    for label in comparison.labels:
        runs = [run for run in comparison.of(label) if run.status == "done" and run.seconds is not None]
        if not runs:
            continue
        tuning = comparison.tuning.get(label, {})
        found.append(
            Cost(
                label,
                len(runs),
                sum(run.seconds or 0.0 for run in runs),
                sum(map(_steps, runs)),
                int(tuning.get("trials") or 0),
                float(tuning.get("seconds") or 0.0),
                int(tuning.get("steps") or 0),
            )
        )
    return found


def _steps(run: Run) -> int:
    """Give the steps of a run; without a count, the last one of its history."""
    return run.steps if run.steps is not None else max((row.step for row in run.history), default=0)
