"""The values of a comparison: one per method, column and seed."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mtlkit.errors import SpecError
from mtlkit.report.endpoint import DELTA_M, Endpoint, base_label, gains_over, has_values
from mtlkit.report.results import FRONT, Comparison, Run
from mtlkit.report.statistics import delta_m, task_improvement, task_statistics

PRIMARY = "primary"
"""Key of the column with the primary endpoint."""

_STATISTICS = {"mean": "mean", "median": "median", "minimum": "min", "maximum": "max", "std": "std"}
Kind: TypeAlias = Literal["metric", "gain", "summary", "time"]
Values: TypeAlias = dict[str, dict[str, dict[int, float]]]


@dataclass(frozen=True)
class Column:
    """A column of values.

    Attributes:
        key: unique name, for CSV.
        group: heading of a group of columns, such as the task.
        title: heading.
        higher_is_better: None if neither direction is better.
        kind: a task's metric, a gain over the baseline, a summary of a metric over tasks, or a time.
        decimals: number of decimals.
    """

    key: str
    group: str
    title: str
    higher_is_better: bool | None
    kind: Kind = "metric"
    decimals: int = 2

    @property
    def arrow(self) -> str:
        """An arrow in the better direction."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]

    @property
    def is_tested(self) -> bool:
        """Whether methods are tested on it."""
        return self.higher_is_better is not None and self.kind != "time"


@dataclass(frozen=True)
class MetricTable:
    """Columns, and values by label, column key and seed."""

    columns: list[Column]
    values: Values

    def seeds(self, label: str, key: str) -> dict[int, float]:
        """Return the values of a method by seed."""
        return dict(sorted(self.values.get(label, {}).get(key, {}).items()))

    def paired(self, first: str, second: str, key: str) -> tuple[list[float], list[float]]:
        """Return the values of two methods on their common seeds."""
        one, other = self.seeds(first, key), self.seeds(second, key)
        shared = sorted(set(one) & set(other))
        return [one[seed] for seed in shared], [other[seed] for seed in shared]

    def differences(self, first: str, second: str, column: Column) -> list[float]:
        """Return the differences by seed, positive if the first is better; NaN if missing."""
        one, other = self.seeds(first, column.key), self.seeds(second, column.key)
        sign = 1.0 if column.higher_is_better else -1.0
        return [sign * (one.get(seed, math.nan) - other.get(seed, math.nan)) for seed in self.all_seeds]

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of any method."""
        rows = (row for columns in self.values.values() for row in columns.values())
        return sorted({seed for row in rows for seed in row})

    @property
    def primary(self) -> Column | None:
        """The column of the primary endpoint, if there is one."""
        return next((column for column in self.columns if column.key == PRIMARY), None)

    @property
    def main_metrics(self) -> list[Column]:
        """The column with the main metric of each task."""
        first: dict[str, Column] = {}
        for column in self.columns:
            if column.kind == "metric":
                first.setdefault(column.group, column)
        return list(first.values())


def collect_metrics(comparison: Comparison, *, all_metrics: bool = False) -> MetricTable:
    """Collect the values of all finished runs.

    The order is: metrics of the tasks; the primary endpoint; relative improvements over the baseline run
    of the same seed or, without a baseline, statistics over tasks of a common metric; Delta m; the time
    of a step.
    """
    labels = (*comparison.labels, *comparison.simple_labels)
    values: Values = {label: defaultdict(dict) for label in labels}
    columns = _metric_columns(comparison, all_metrics, values)
    columns += _primary_column(comparison, values)
    if comparison.baseline in comparison.labels:
        columns += _improvement_columns(comparison, values)
    else:
        columns += _task_columns(comparison, values)
    columns += _delta_m_column(comparison, values)
    columns += _time_column(comparison, values)
    return MetricTable(columns, values)


def task_gains(comparison: Comparison, run: Run) -> dict[str, float]:
    """Return the improvement of each task over the baseline run of the same seed, in percent."""
    return gains_over(comparison.baseline, task_improvement, comparison, run)


def _metric_columns(comparison: Comparison, all_metrics: bool, values: Values) -> list[Column]:
    columns = []
    for task in comparison.tasks:
        for metric in task.metrics if all_metrics else (task.main_metric,):
            key = f"{task.name}/{metric}"
            columns.append(Column(key, task.name, metric, task.metrics.get(metric, False)))
            for run in _finished(comparison):
                values[run.label][key][run.seed] = run.metric(task.name, metric)
    return columns


def _primary_column(comparison: Comparison, values: Values) -> list[Column]:
    base = base_label(comparison)
    if base is None:
        return []
    endpoint = Endpoint.of(comparison)
    column = Column(PRIMARY, "primary endpoint", endpoint.heading, True, "gain")
    if endpoint.statistic == DELTA_M:
        if not _delta_m_column(comparison, values):
            return []
        for row in values.values():
            row[PRIMARY] = {seed: -value for seed, value in row.get(DELTA_M, {}).items()}
        return [column]
    for run in _finished(comparison):
        other = comparison.find(base, run.seed)
        if other is not None and other.status == "done":
            values[run.label][PRIMARY][run.seed] = endpoint.gain(run.metrics, other.metrics)
    return [column]


def _delta_m_column(comparison: Comparison, values: Values) -> list[Column]:
    """Add Delta m, relative to the single-task run of the same seed or to a fixed row."""
    fixed = comparison.config.get("single_task_row")
    directions = {
        f"{task.name}/{metric}": higher
        for task in comparison.tasks
        for metric, higher in (task.metrics if fixed else task.directions).items()
        if not fixed or f"{task.name}/{metric}" in fixed
    }
    if fixed and (unknown := sorted(set(fixed) - set(directions))):
        known = ", ".join(f"{task.name}/{name}" for task in comparison.tasks for name in task.metrics)
        raise SpecError(f"single_task_row has unknown metrics {', '.join(unknown)}; known: {known}")
    if not fixed and comparison.baseline not in comparison.labels:
        return []
    for run in _finished(comparison):
        base = None if fixed else comparison.find(str(comparison.baseline), run.seed)
        baseline = {**fixed} if fixed else {} if base is None else _flat(base)
        values[run.label][DELTA_M][run.seed] = delta_m(_flat(run), baseline, directions)
    return [Column(DELTA_M, "all metrics", "Δm", False, "gain")]


def _flat(run: Run) -> dict[str, float]:
    return {
        f"{task}/{name}": run.metric(task, name) for task, row in run.metrics.items() for name in row
    }


def _improvement_columns(comparison: Comparison, values: Values) -> list[Column]:
    """Add improvements of tasks that are means of several metrics, then statistics over tasks."""
    several = [task.name for task in comparison.tasks if len(task.directions) > 1]
    over = comparison.config.get("improvement_over")
    for run in _finished(comparison):
        gains = task_gains(comparison, run)
        single = comparison.find(str(comparison.baseline), run.seed)
        counted = [
            gains[task.name]
            for task in comparison.tasks
            # a task without a single-task result is left out for every method
            if (over is None or task.name in over)
            and (single is None or has_values(single.metrics.get(task.name, {}), task.directions))
        ]
        for name in several:
            values[run.label][f"delta/task/{name}"][run.seed] = gains[name]
        _add_statistics(values[run.label], "delta", run.seed, counted)
    columns = [Column(f"delta/task/{name}", "Δ per task", f"Δ {name}", True, "gain") for name in several]
    return columns + _statistics_columns("delta", "Δ over tasks, %", "Δ", True, "gain")


def _task_columns(comparison: Comparison, values: Values) -> list[Column]:
    """Add statistics over tasks of the main metric, if all tasks have the same."""
    metrics = {(task.main_metric, task.higher_is_better) for task in comparison.tasks}
    if len(metrics) != 1 or len(comparison.tasks) < 3:
        return []
    ((metric, higher),) = metrics
    for run in _finished(comparison):
        by_task = [run.metric(task.name, metric) for task in comparison.tasks]
        _add_statistics(values[run.label], "over", run.seed, by_task)
    return _statistics_columns("over", "over tasks", metric, higher, "summary")


def _add_statistics(row: dict[str, dict[int, float]], key: str, seed: int, found: list[float]) -> None:
    statistics = task_statistics(found)
    for name in _STATISTICS:
        row[f"{key}/{name}"][seed] = getattr(statistics, name)


def _statistics_columns(key: str, group: str, what: str, higher: bool, kind: Kind) -> list[Column]:
    return [
        Column(f"{key}/{name}", group, f"{what} {title}", None if name == "std" else higher, kind)
        for name, title in _STATISTICS.items()
    ]


def _time_column(comparison: Comparison, values: Values) -> list[Column]:
    timed = [run for run in _finished(comparison) if run.step_ratio is not None]
    for run in timed:
        values[run.label]["time"][run.seed] = float(run.step_ratio or math.nan)
    # the reference's own ratio is 1, and says nothing where no other could be measured
    known = any(run.label != comparison.reference for run in timed)
    return [Column("time", "Time", "× step", False, "time")] if known else []


def _finished(comparison: Comparison) -> list[Run]:
    return [run for run in comparison.runs if run.status == "done" and run.kind != FRONT]
