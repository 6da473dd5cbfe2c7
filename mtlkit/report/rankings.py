"""Mean ranks of the methods over tasks."""

from __future__ import annotations

import numpy as np

from mtlkit.report.charts import Row, row_chart
from mtlkit.report.page import Charts, Note, Section
from mtlkit.report.results import Comparison
from mtlkit.report.significance import rank_methods
from mtlkit.report.trade_offs import incomplete, mean_metrics


def rank_section(comparison: Comparison) -> Section:
    """Draw ranks on every task's main metric, the single-task networks among them."""
    labels = comparison.labels
    if len(labels) < 3 or len(comparison.tasks) < 2:
        return Section("ranks", "", [])
    signs = np.array([1.0 if task.higher_is_better else -1.0 for task in comparison.tasks])
    ranking = rank_methods(labels, mean_metrics(comparison, labels) * signs)
    if len(ranking.labels) < 3:
        return Section("ranks", "", [])
    rows = [
        Row(labels.index(label), label, rank)
        for label, rank in zip(ranking.labels, ranking.ranks, strict=True)
    ]
    chart = row_chart(rows, "Mean rank", "mean rank, 1 is best", bounds=(1.0, float(len(rows))))
    note = f"Mean rank over {ranking.tasks} tasks, 1 is best, by means over seeds."
    return Section(
        "ranks",
        "Ranks over tasks",
        [Note(note + incomplete(comparison, "of the ranking")), Charts([chart])],
    )
