"""Statistics and reports of comparisons; each is imported when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# the settings of a comparison do without torch
_MODULES = {
    "report": ("render_report", "write_report"),
    "results": ("Comparison", "HistoryRow", "MonitorRow", "Run", "TaskRecord"),
    "statistics": ("confidence_band", "paired_t_test", "relative_improvement", "task_statistics"),
    "tables": ("build_table", "to_csv", "to_latex", "to_markdown"),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
