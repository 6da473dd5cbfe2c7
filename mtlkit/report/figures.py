"""The figures that a comparison is judged by: one per method, column and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mtlkit.report.results import FRONT, Comparison, Run
from mtlkit.report.statistics import task_improvement, task_statistics

_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "minimum": "min",
    "maximum": "max",
    "std": "std",
}
Kind: TypeAlias = Literal["metric", "gain", "summary", "time"]
Values: TypeAlias = dict[str, dict[str, dict[int, float]]]


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        key: unique, for CSV.
        group: heading above, the task's name.
        title: heading.
        higher_is_better: None where neither is.
        kind: a task's metric, a gain over the baseline, a summary of a metric over tasks, or a time.
        decimals: digits behind the point.
    """

    key: str
    group: str
    title: str
    higher_is_better: bool | None
    kind: Kind = "metric"
    decimals: int = 2

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]

    @property
    def is_tested(self) -> bool:
        """Whether methods are compared by it."""
        return self.higher_is_better is not None and self.kind != "time"


@dataclass(frozen=True)
class Figures:
    """Columns, and their values by label, key of the column and seed."""

    columns: list[Column]
    values: Values

    def seeds(self, label: str, key: str) -> dict[int, float]:
        """The values of a method, by seed."""
        return self.values.get(label, {}).get(key, {})

    def paired(self, first: str, second: str, key: str) -> tuple[list[float], list[float]]:
        """The values of two methods on the seeds that both have."""
        one, other = self.seeds(first, key), self.seeds(second, key)
        shared = sorted(set(one) & set(other))
        return [one[seed] for seed in shared], [other[seed] for seed in shared]

    @property
    def overall(self) -> Column | None:
        """The column that sums a method up: the mean over tasks, where there is one."""
        means = {("delta/mean", "gain"), ("over/mean", "summary")}
        return next((c for c in self.columns if (c.key, c.kind) in means), None)


def collect_figures(comparison: Comparison, *, all_metrics: bool = False) -> Figures:
    """All figures of the finished runs.

    Metrics of the tasks come first; then relative improvements over the baseline's run of the same seed,
    or, without a baseline, statistics over tasks of a metric that all have; last the time of a step.
    """
    values: Values = {label: {} for label in (*comparison.labels, *comparison.simple_labels)}
    columns = _metric_columns(comparison, all_metrics, values)
    if comparison.baseline in comparison.labels:
        columns += _improvement_columns(comparison, values)
    else:
        columns += _task_columns(comparison, values)
    columns += _time_column(comparison, values)
    return Figures(columns, values)


def task_gains(comparison: Comparison, run: Run) -> dict[str, float]:
    """Relative improvement of each task over the baseline's run of the same seed, in percent."""
    single = None
    if comparison.baseline is not None:
        single = comparison.find(comparison.baseline, run.seed)
    if single is None or single.status == "failed":
        return dict.fromkeys((task.name for task in comparison.tasks), math.nan)
    return {
        task.name: task_improvement(
            run.metrics.get(task.name, {}), single.metrics.get(task.name, {}), task.directions
        )
        for task in comparison.tasks
    }


def _metric_columns(comparison: Comparison, all_metrics: bool, values: Values) -> list[Column]:
    columns = []
    for task in comparison.tasks:
        for metric in task.metrics if all_metrics else (task.main_metric,):
            key = f"{task.name}/{metric}"
            columns.append(Column(key, task.name, metric, task.metrics.get(metric, False)))
            for run in _finished(comparison):
                values[run.label].setdefault(key, {})[run.seed] = run.metric(task.name, metric)
    return columns


def _improvement_columns(comparison: Comparison, values: Values) -> list[Column]:
    """Improvement per task where it is the mean of several metrics, then statistics over tasks."""
    several = [task for task in comparison.tasks if len(task.directions) > 1]
    columns = [
        Column(f"delta/task/{task.name}", "Δ per task", f"Δ {task.name}", True, "gain")
        for task in several
    ]
    for name, title in _STATISTICS.items():
        better = None if name == "std" else True
        columns.append(Column(f"delta/{name}", "Δ over tasks, %", f"Δ {title}", better, "gain"))
    over = comparison.config.get("improvement_over")
    for run in _finished(comparison):
        gains = task_gains(comparison, run)
        single = comparison.find(str(comparison.baseline), run.seed)
        found = task_statistics(
            [
                gain
                for name, gain in gains.items()
                # a task whose single-task network failed is left out for every method alike
                if (over is None or name in over) and (single is None or name in single.metrics)
            ]
        )
        row = values[run.label]
        for task in several:
            row.setdefault(f"delta/task/{task.name}", {})[run.seed] = gains[task.name]
        for name in _STATISTICS:
            row.setdefault(f"delta/{name}", {})[run.seed] = getattr(found, name)
    return columns


def _task_columns(comparison: Comparison, values: Values) -> list[Column]:
    """Statistics over tasks of the metric itself, where there is no baseline and all have the same."""
    metrics = {(task.main_metric, task.higher_is_better) for task in comparison.tasks}
    if len(metrics) != 1 or len(comparison.tasks) < 3:
        return []
    ((metric, higher),) = metrics
    for run in _finished(comparison):
        found = task_statistics([run.metric(task.name, metric) for task in comparison.tasks])
        for name in _STATISTICS:
            values[run.label].setdefault(f"over/{name}", {})[run.seed] = getattr(found, name)
    columns = []
    for name, title in _STATISTICS.items():
        better = None if name == "std" else higher
        columns.append(Column(f"over/{name}", "over tasks", f"{metric} {title}", better, "summary"))
    return columns


def _time_column(comparison: Comparison, values: Values) -> list[Column]:
    timed = [run for run in _finished(comparison) if run.step_ratio is not None]
    for run in timed:
        values[run.label].setdefault("time", {})[run.seed] = float(run.step_ratio or math.nan)
    return [Column("time", "Time", "× step", False, "time")] if timed else []


def _finished(comparison: Comparison) -> list[Run]:
    return [run for run in comparison.runs if run.status == "done" and run.kind != FRONT]
