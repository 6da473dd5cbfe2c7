"""Statistics and reports of comparisons."""

from mtlkit.report.histories import HistoryRow, MonitorRow
from mtlkit.report.report import render_report, write_report
from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.statistics import (
    confidence_band,
    paired_t_test,
    relative_improvement,
    task_statistics,
)
from mtlkit.report.tables import build_table, to_csv, to_latex, to_markdown

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
