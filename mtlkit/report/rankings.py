"""Mean ranks over tasks as a critical-difference drawing (Demšar, 2006)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mtlkit.report.charts import ROW, Chart, plain, shorten
from mtlkit.report.page import Charts, Note, Section
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Ranking, rank_methods
from mtlkit.report.trade_offs import incomplete, mean_metrics

_FEW_TASKS = 5


def rank_section(comparison: Comparison) -> Section:
    """Ranks on every task's main metric, the single-task networks among them."""
    labels = comparison.labels
    if len(labels) < 3 or len(comparison.tasks) < 2:
        return Section("ranks", "", [])
    signs = np.array([1.0 if task.higher_is_better else -1.0 for task in comparison.tasks])
    ranking = rank_methods(labels, mean_metrics(comparison, labels) * signs)
    if len(ranking.labels) < 3:
        return Section("ranks", "", [])
    note = Note(_note(ranking) + incomplete(comparison, "of the ranking"))
    return Section("ranks", "Ranks over tasks", [note, Charts([_drawing(comparison, ranking)])])


def _note(ranking: Ranking) -> str:
    few = f" {ranking.tasks} tasks are few for such a test." if ranking.tasks < _FEW_TASKS else ""
    if math.isnan(ranking.p_value):
        result = "All ranks are alike."
    elif ranking.p_value < 0.05:
        result = f"Friedman's test: the ranks differ (p = {ranking.p_value:.2g})."
    else:
        result = f"Friedman's test does not tell the methods apart (p = {ranking.p_value:.2g})."
    return (
        f"Mean rank over {ranking.tasks} tasks, 1 is best, by means over seeds. {result} A bar joins "
        "methods whose ranks are closer than Nemenyi's critical difference of "
        f"{ranking.critical:.2f} at 0.05.{few}"
    )


def _drawing(comparison: Comparison, ranking: Ranking) -> Chart:
    number, bars = len(ranking.labels), len(ranking.groups)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers+text",  # not a tick label, so that the legend hides it too
            "name": plain(label),
            "text": [shorten(label)],
            "textposition": "middle right" if 2 * rank < number + 1 else "middle left",
            "cliponaxis": False,
            "x": [rank],
            "y": [place],
            "marker": {"size": 10},
            "hovertemplate": "mean rank %{x:.2f}",
            "meta": {"series": comparison.labels.index(label)},
        }
        for place, (label, rank) in enumerate(zip(ranking.labels, ranking.ranks, strict=True))
    ]
    for level, (first, last) in enumerate(ranking.groups):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [ranking.ranks[first] - 0.04, ranking.ranks[last] + 0.04],
                "y": [-1 - level, -1 - level],
                "line": {"width": 5},
                "hoverinfo": "skip",
            }
        )
    reach = min(ranking.critical, number - 1.0)
    ruler = {"x": [1, 1 + reach], "y": [-1.5 - bars] * 2, "line": {"width": 1.5}, "hoverinfo": "skip"}
    data.append(
        {"type": "scatter", "mode": "lines+markers", "marker": {"symbol": "line-ns-open"}, **ruler}
    )
    more = "" if reach == ranking.critical else ", beyond the axis"
    layout = {
        "xaxis": {"title": {"text": "mean rank"}, "range": [0.7, number + 0.3], "minallowed": 0.5,
                  "maxallowed": number + 0.5, "dtick": 1 if number <= 12 else 2},
        "yaxis": {"range": [number - 0.4, -2.6 - bars], "showgrid": False, "showticklabels": False},
        "height": 110 + ROW * (number + 1) + 14 * bars,
        "hovermode": "closest",
        "annotations": [
            {"x": 1, "y": -2.0 - bars, "xanchor": "left", "yanchor": "bottom", "yshift": -4,
             "text": f"critical difference {ranking.critical:.2f}{more}"}
        ],
    }  # fmt: skip
    ranks = ", ".join(
        f"{label} {rank:.2f}" for label, rank in zip(ranking.labels, ranking.ranks, strict=True)
    )
    return Chart(
        "Critical difference", {"data": data, "layout": layout}, f"Mean ranks: {ranks}.", wide=True
    )
