"""Mean ranks over tasks and seeds, drawn as by Demšar (2006)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtlkit.report.charts import ROW, Chart, plain, shorten
from mtlkit.report.page import Charts, Note, Section
from mtlkit.report.results import Comparison
from mtlkit.report.significance import LEVEL, Ranking, rank_methods
from mtlkit.report.statistics import Floats
from mtlkit.report.trade_offs import incomplete


def rank_section(comparison: Comparison) -> Section:
    """Ranks on every task's main metric, the single-task networks among them."""
    labels, seeds = comparison.labels, comparison.seeds
    if len(labels) < 3 or len(comparison.tasks) < 2:
        return Section("ranks", "", [])
    ranking = rank_methods(labels, _metrics(comparison))
    if len(ranking.labels) < 3:
        return Section("ranks", "", [])
    found = "differ" if ranking.p_value < LEVEL else "are not told apart"
    note = Note(
        f"Mean rank over {len(comparison.tasks)} tasks and {len(seeds)} seeds, 1 is best. The ranks "
        f"{found} (p = {ranking.p_value:.2g}, permutation of methods within seeds). A bar joins methods "
        f"whose ranks are closer than {ranking.critical:.2f}, which the mean ranks of methods "
        f"that do not differ span in 95 % of permutations.{incomplete(comparison, 'of the ranking')}"
    )
    return Section("ranks", "Ranks over tasks", [note, Charts([_drawing(comparison, ranking)])])


def _metrics(comparison: Comparison) -> Floats:
    """Main metrics (methods, seeds, tasks), signed so that higher is better; NaN where missing."""
    table = np.full((len(comparison.labels), len(comparison.seeds), len(comparison.tasks)), np.nan)
    for method, label in enumerate(comparison.labels):
        for run in comparison.of(label):
            if run.status == "done":
                table[method, comparison.seeds.index(run.seed)] = [
                    run.metric(task.name, task.main_metric) * (1 if task.higher_is_better else -1)
                    for task in comparison.tasks
                ]
    return table


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
