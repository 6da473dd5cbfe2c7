"""The primary endpoint: the one number per run that decides a comparison.

By default it is the mean over tasks of the log-ratio to the single-task network of the same seed, or,
without single-task networks, to the reference. The setting ``primary`` chooses another one before the
runs: ``mean``, ``median`` or ``minimum`` over tasks, or the name of a task, optionally with a metric:
``mean/auc``, ``depth/rmse``. ``delta_m`` is the Delta m of published comparisons, with the sign changed
so that higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtlkit.errors import SpecError, unknown_name
from mtlkit.report.histories import Metrics
from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.statistics import task_log_ratio

OVER_TASKS: dict[str, Callable[[list[float]], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "minimum": np.min,
}

DELTA_M = "delta_m"


@dataclass(frozen=True)
class Endpoint:
    """A primary endpoint.

    Attributes:
        directions: metrics of each counted task, and whether higher is better.
        statistic: statistic over these tasks, or the name of one task.
        metric: chosen metric, or empty.
        left_out: tasks that do not count.
    """

    directions: dict[str, dict[str, bool]]
    statistic: str = "mean"
    metric: str = ""
    left_out: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, text: str | None, tasks: Sequence[TaskRecord], over: Sequence[str] | None = None
    ) -> Endpoint:
        """Read the setting ``primary``.

        Args:
            text: the setting; None means ``mean``.
            tasks: tasks of the comparison.
            over: tasks that statistics are taken over; None means all.

        >>> tasks = [TaskRecord("left", {"accuracy": True}), TaskRecord("depth", {"rmse": False})]
        >>> Endpoint.parse("depth/rmse", tasks).title
        'depth/rmse'
        """
        statistic, _, metric = (text or "mean").partition("/")
        names = [task.name for task in tasks]
        if text == DELTA_M:
            chosen = list(tasks)
        elif statistic in OVER_TASKS:
            chosen = [task for task in tasks if over is None or task.name in over]
        else:
            chosen = [task for task in tasks if task.name == statistic]
            if not chosen:
                raise unknown_name("primary endpoint", statistic, [*OVER_TASKS, DELTA_M, *names])
        for task in chosen:
            if metric and metric not in task.metrics:
                known = ", ".join(task.metrics) or "none"
                raise SpecError(
                    f"the primary endpoint {text!r} needs the metric {metric!r}, which the task "
                    f"{task.name!r} does not have; its metrics: {known}"
                )
        directions = {
            task.name: {metric: task.metrics[metric]} if metric else task.directions for task in chosen
        }
        left_out = tuple(name for name in names if name not in directions)
        return cls(directions, statistic, metric, left_out)

    @classmethod
    def of(cls, comparison: Comparison) -> Endpoint:
        """Return the endpoint of a comparison."""
        config = comparison.config
        return cls.parse(config.get("primary"), comparison.tasks, config.get("improvement_over"))

    @property
    def title(self) -> str:
        """The setting that chooses it."""
        return f"{self.statistic}/{self.metric}" if self.metric else self.statistic

    @property
    def heading(self) -> str:
        """The heading of its column."""
        return "−Δm" if self.statistic == DELTA_M else f"log-ratio, {self.title}"

    def gain(self, metrics: Metrics, baseline: Metrics) -> float:
        """Return the gain of one run over another, in hundredths of a log-ratio; higher is better.

        >>> endpoint = Endpoint({"left": {"accuracy": True}})
        >>> round(endpoint.gain({"left": {"accuracy": 0.9}}, {"left": {"accuracy": 0.8}}), 1)
        11.8
        """
        gains = [
            task_log_ratio(metrics.get(task, {}), baseline.get(task, {}), directions)
            for task, directions in self.directions.items()
            if has_values(baseline.get(task, {}), directions)
        ]
        return float(OVER_TASKS.get(self.statistic, np.mean)(gains)) if gains else math.nan


def has_values(metrics: Mapping[str, float], directions: Mapping[str, bool]) -> bool:
    """Return whether a baseline has a finite metric of a task; else the task is left out everywhere.

    >>> has_values({"mse": math.nan}, {"mse": False})
    False
    """
    return any(math.isfinite(metrics.get(name, math.nan)) for name in directions)


def base_label(comparison: Comparison) -> str | None:
    """Return the label that gains are relative to: single-task networks, else the reference."""
    for label in (comparison.baseline, comparison.reference):
        if label is not None and label in comparison.labels:
            return label
    return None


def task_log_gains(comparison: Comparison, run: Run) -> dict[str, float]:
    """Return the log-ratio of each task to the baseline run of the same seed, in hundredths."""
    return gains_over(base_label(comparison), task_log_ratio, comparison, run)


def gains_over(
    base: str | None, gain: Callable[..., float], comparison: Comparison, run: Run
) -> dict[str, float]:
    """Return the gain of each task over the baseline run of the same seed; NaN without one."""
    found = None if base is None else comparison.find(base, run.seed)
    baseline: Metrics = {} if found is None or found.status == "failed" else found.metrics
    return {
        task.name: gain(run.metrics.get(task.name, {}), baseline.get(task.name, {}), task.directions)
        for task in comparison.tasks
    }
