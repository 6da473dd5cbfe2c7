"""Statistics and reports of comparisons."""

from mtlkit.evaluation.report import render_report, write_report
from mtlkit.evaluation.results import Comparison, HistoryRow, MonitorRow, Run, TaskRecord
from mtlkit.evaluation.statistics import (
    confidence_band,
    paired_t_test,
    relative_improvement,
    task_statistics,
)
from mtlkit.evaluation.tables import build_table, to_csv, to_latex, to_markdown

__all__ = [
    "Comparison",
    "HistoryRow",
    "MonitorRow",
    "Run",
    "TaskRecord",
    "build_table",
    "confidence_band",
    "paired_t_test",
    "relative_improvement",
    "render_report",
    "task_statistics",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_report",
]
