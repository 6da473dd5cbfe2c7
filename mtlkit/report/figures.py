"""The values that a comparison is judged by: one per method, column and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mtlkit.errors import SpecError
from mtlkit.report.endpoint import Endpoint, base_label, gains_over, has_values
from mtlkit.report.results import FRONT, Comparison, Run
from mtlkit.report.statistics import delta_m, task_improvement, task_statistics

PRIMARY = "primary"
"""Key of the column that a comparison is decided by."""

_STATISTICS = {"mean": "mean", "median": "median", "minimum": "min", "maximum": "max", "std": "std"}
Kind: TypeAlias = Literal["metric", "gain", "summary", "time"]
Values: TypeAlias = dict[str, dict[str, dict[int, float]]]


@dataclass(frozen=True)
class Column:
    """A column of values.

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
class MetricTable:
    """Columns, and their values by label, key of the column and seed."""

    columns: list[Column]
    values: Values

    def seeds(self, label: str, key: str) -> dict[int, float]:
        """The values of a method, by seed."""
        return dict(sorted(self.values.get(label, {}).get(key, {}).items()))

    def paired(self, first: str, second: str, key: str) -> tuple[list[float], list[float]]:
        """The values of two methods on the seeds that both have."""
        one, other = self.seeds(first, key), self.seeds(second, key)
        shared = sorted(set(one) & set(other))
        return [one[seed] for seed in shared], [other[seed] for seed in shared]

    def differences(self, first: str, second: str, column: Column) -> list[float]:
        """The differences of two methods by seed, positive where the first is better; NaN if missing."""
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
        """The primary endpoint, where there is a run to measure it from."""
        return next((column for column in self.columns if column.key == PRIMARY), None)

    @property
    def main_metrics(self) -> list[Column]:
        """The main metric of each task."""
        first: dict[str, Column] = {}
        for column in self.columns:
            if column.kind == "metric":
                first.setdefault(column.group, column)
        return list(first.values())


def collect_metrics(comparison: Comparison, *, all_metrics: bool = False) -> MetricTable:
    """Collect the values of all finished runs.

    Metrics of the tasks come first; then the primary endpoint; the relative improvements over the
    baseline's run of the same seed, or, without a baseline, statistics over tasks of a metric that all
    have; the field's Delta m; last the time of a step.
    """
    made = _Collector(comparison)
    made.add_metrics(all_metrics)
    made.add_primary()
    if comparison.baseline in comparison.labels:
        made.add_improvements()
    else:
        made.add_statistics()
    made.add_delta_m()
    made.add_time()
    return MetricTable(made.columns, made.values)


def task_gains(comparison: Comparison, run: Run) -> dict[str, float]:
    """Return the relative improvement of each task over the baseline of the same seed, in percent."""
    return gains_over(comparison.baseline, task_improvement, comparison, run)


class _Collector:
    """Adds column after column, with the value of every finished run."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.tasks = comparison, comparison.tasks
        labels = (*comparison.labels, *comparison.simple_labels)
        self.runs = [run for run in comparison.runs if run.status == "done" and run.kind != FRONT]
        self.columns: list[Column] = []
        self.values: Values = {label: {} for label in labels}

    def put(self, run: Run, key: str, value: float) -> None:
        self.values[run.label].setdefault(key, {})[run.seed] = value

    def add_metrics(self, all_metrics: bool) -> None:
        for task in self.tasks:
            for metric in task.metrics if all_metrics else (task.main_metric,):
                key = f"{task.name}/{metric}"
                self.columns.append(Column(key, task.name, metric, task.metrics.get(metric, False)))
                for run in self.runs:
                    self.put(run, key, run.metric(task.name, metric))

    def add_primary(self) -> None:
        base = base_label(self.comparison)
        if base is None:
            return
        endpoint = Endpoint.of(self.comparison)
        title = f"log-ratio, {endpoint.title}"
        self.columns.append(Column(PRIMARY, "primary endpoint", title, True, "gain"))
        for run in self.runs:
            other = self.comparison.find(base, run.seed)
            if other is not None and other.status == "done":
                self.put(run, PRIMARY, endpoint.gain(run.metrics, other.metrics))

    def add_improvements(self) -> None:
        """Add the improvement per task where it is a mean of metrics, then statistics over tasks."""
        several = [task.name for task in self.tasks if len(task.directions) > 1]
        for name in several:
            key = f"delta/task/{name}"
            self.columns.append(Column(key, "Δ per task", f"Δ {name}", True, "gain"))
        for name, title in _STATISTICS.items():
            better = None if name == "std" else True
            self.columns.append(Column(f"delta/{name}", "Δ over tasks, %", f"Δ {title}", better, "gain"))
        over = self.comparison.config.get("improvement_over")
        for run in self.runs:
            gains = task_gains(self.comparison, run)
            single = self.comparison.find(str(self.comparison.baseline), run.seed)
            # a task whose single-task network has no result is left out for every method alike
            counted = [
                task.name
                for task in self.tasks
                if (over is None or task.name in over)
                and (single is None or has_values(single.metrics.get(task.name, {}), task.directions))
            ]
            found = task_statistics([gains[name] for name in counted])
            for name in several:
                self.put(run, f"delta/task/{name}", gains[name])
            for name in _STATISTICS:
                self.put(run, f"delta/{name}", getattr(found, name))

    def add_statistics(self) -> None:
        """Add statistics over tasks of the metric itself, where all have the same."""
        metrics = {(task.main_metric, task.higher_is_better) for task in self.tasks}
        if len(metrics) != 1 or len(self.tasks) < 3:
            return
        ((metric, higher),) = metrics
        for name, title in _STATISTICS.items():
            better = None if name == "std" else higher
            column = Column(f"over/{name}", "over tasks", f"{metric} {title}", better, "summary")
            self.columns.append(column)
        for run in self.runs:
            found = task_statistics([run.metric(task.name, metric) for task in self.tasks])
            for name in _STATISTICS:
                self.put(run, f"over/{name}", getattr(found, name))

    def add_delta_m(self) -> None:
        """Add the field's Delta m, over the single-task run of this seed or a row of the settings."""
        fixed = self.comparison.config.get("single_task_row")
        directions = {
            f"{task.name}/{metric}": higher
            for task in self.tasks
            for metric, higher in (task.metrics if fixed else task.directions).items()
            if not fixed or f"{task.name}/{metric}" in fixed
        }
        if fixed and (unknown := sorted(set(fixed) - set(directions))):
            known = ", ".join(f"{task.name}/{name}" for task in self.tasks for name in task.metrics)
            raise SpecError(f"single_task_row names {', '.join(unknown)}; known metrics: {known}")
        if not fixed and self.comparison.baseline not in self.comparison.labels:
            return
        self.columns.append(Column("delta_m", "field", "Δm", False, "gain"))
        for run in self.runs:
            base = None if fixed else self.comparison.find(str(self.comparison.baseline), run.seed)
            baseline = {**fixed} if fixed else {} if base is None else _flat(base)
            self.put(run, "delta_m", delta_m(_flat(run), baseline, directions))

    def add_time(self) -> None:
        timed = [run for run in self.runs if run.step_ratio is not None]
        if timed:
            self.columns.append(Column("time", "Time", "× step", False, "time"))
        for run in timed:
            self.put(run, "time", float(run.step_ratio or math.nan))


def _flat(run: Run) -> dict[str, float]:
    return {
        f"{task}/{name}": run.metric(task, name) for task, row in run.metrics.items() for name in row
    }
