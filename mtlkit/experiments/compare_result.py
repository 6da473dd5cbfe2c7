"""The result of a comparison in Python: a tidy table of runs, the verdict, the report."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlkit.config.extras import import_extra
from mtlkit.report.results import Comparison
from mtlkit.report.tables import ResultTable, build_table

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("method", "seed", "kind", "status", "task", "metric", "value", "higher_is_better", "main"),
    *("split", "seconds", "steps", "step_ratio", "error"),
)
"""Columns of ``results.csv`` and of :meth:`CompareResult.frame`."""
_COPIED = ("seed", "status", "seconds", "steps", "step_ratio", "error")


@dataclass(frozen=True)
class CompareResult:
    """A finished comparison: its runs, and their folder.

    >>> from mtlkit.report.results import Comparison, Run, TaskRecord
    >>> runs = [Run("sum", seed, metrics={"left": {"accuracy": 0.5}}) for seed in (0, 1)]
    >>> found = CompareResult(Comparison("x", [TaskRecord("left", {"accuracy": True})], runs), Path("x"))
    >>> found.frame()[["method", "seed", "task", "value"]].to_dict("list")
    {'method': ['sum', 'sum'], 'seed': [0, 1], 'task': ['left', 'left'], 'value': [0.5, 0.5]}
    """

    comparison: Comparison
    folder: Path

    @property
    def table(self) -> ResultTable:
        """The table with its statistics."""
        return build_table(self.comparison)

    @property
    def verdict(self) -> str:
        """The findings, in a few sentences."""
        return self.table.verdict.text

    @property
    def report(self) -> Path:
        """The HTML page with table and charts."""
        return self.folder / "report.html"

    def frame(self) -> pandas.DataFrame:
        """Return one row per run, task and metric; a failed run has one row without a value."""
        frame = import_extra("pandas", "frame()").DataFrame
        return frame(tidy_rows(self.comparison), columns=list(COLUMNS))


def tidy_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """List the runs in long form: one row per run, task and metric."""
    tasks = {task.name: task for task in comparison.tasks}
    rows = []
    for run in sorted(comparison.runs, key=lambda run: (run.kind, run.label, run.seed)):
        kind = run.kind or ("single-task" if run.label == comparison.baseline else "method")
        common = {"method": run.label, "kind": kind, "split": comparison.split}
        common |= {name: getattr(run, name) for name in _COPIED}
        found = [(task, *pair) for task, metrics in run.metrics.items() for pair in metrics.items()]
        for task, metric, value in found or [("", "", math.nan)]:
            row = {**common, "task": task, "metric": metric, "value": value}
            if found:
                record = tasks.get(task)
                row["higher_is_better"] = record is not None and record.metrics.get(metric, False)
                row["main"] = record is not None and metric == record.main_metric
            rows.append(row)
    return rows


def to_tidy_csv(comparison: Comparison) -> str:
    """Return the content of ``results.csv``."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(tidy_rows(comparison))
    return stream.getvalue()
