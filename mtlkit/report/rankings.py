"""Mean ranks of the methods over tasks and seeds."""

from __future__ import annotations

import numpy as np

from mtlkit.report.charts import Row, row_chart
from mtlkit.report.page import Charts, Note, Section
from mtlkit.report.results import Comparison
from mtlkit.report.significance import LEVEL, rank_methods
from mtlkit.report.statistics import Floats
from mtlkit.report.trade_offs import incomplete


def rank_section(comparison: Comparison) -> Section:
    """Draw ranks on every task's main metric, the single-task networks among them."""
    labels, seeds = comparison.labels, comparison.seeds
    if len(labels) < 3 or len(comparison.tasks) < 2:
        return Section("ranks", "", [])
    ranking = rank_methods(labels, _metrics(comparison))
    if len(ranking.labels) < 3:
        return Section("ranks", "", [])
    found = "differ" if ranking.p_value < LEVEL else "are not told apart"
    note = Note(
        f"Mean rank over {len(comparison.tasks)} tasks and {len(seeds)} seeds, 1 is best. The ranks "
        f"{found} (p = {ranking.p_value:.2g}, permutation of methods within seeds). Methods left of the "
        f"dashed line are not told apart from the best.{incomplete(comparison, 'of the ranking')}"
    )
    rows = [
        Row(labels.index(label), label, rank)
        for label, rank in zip(ranking.labels, ranking.ranks, strict=True)
    ]
    limit = min(ranking.ranks[0] + ranking.critical, len(rows) + 0.4)
    bounds = (0.5, len(rows) + 0.5)
    chart = row_chart(rows, "Mean rank", "mean rank, 1 is best", marker=limit, bounds=bounds)
    return Section("ranks", "Ranks over tasks", [note, Charts([chart])])


def _metrics(comparison: Comparison) -> Floats:
    """Return main metrics (methods, seeds, tasks), higher is better; NaN where missing."""
    table = np.full((len(comparison.labels), len(comparison.seeds), len(comparison.tasks)), np.nan)
    for method, label in enumerate(comparison.labels):
        for run in comparison.of(label):
            if run.status == "done":
                table[method, comparison.seeds.index(run.seed)] = [
                    run.metric(task.name, task.main_metric) * (1 if task.higher_is_better else -1)
                    for task in comparison.tasks
                ]
    return table
