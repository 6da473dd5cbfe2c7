"""Drawings of a diagnosis with Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtlkit.diagnosis.affinity import GROUP_COSINE, tree
from mtlkit.diagnosis.figures import Figures
from mtlkit.diagnosis.measure import Array

__all__ = ["curves", "dendrogram", "matrix"]

_FEW_TASKS = 12
"""Up to so many tasks, the cells of a matrix have their numbers written in them."""


def curves(figures: Figures, values: Array, title: str) -> Any:
    """One line per task over the steps, on a logarithmic axis where all values allow it."""
    import plotly.graph_objects as go

    steps = np.arange(1, len(values) + 1)
    chart = go.Figure()
    for k, task in enumerate(figures.tasks):
        column = values[:, k]
        known = np.isfinite(column)
        chart.add_scatter(x=steps[known], y=column[known], name=task, mode="lines")
    positive = bool((values[np.isfinite(values)] > 0).all())
    chart.update_layout(xaxis_title="step", yaxis_title=title)
    chart.update_yaxes(type="log" if positive else "linear")
    return chart


def matrix(figures: Figures, values: Array, form: str, limit: float, rows: str, columns: str) -> Any:
    """A (K, K) table in colours, red for conflict and blue for help."""
    import plotly.graph_objects as go

    labels = list(figures.tasks)
    chart = go.Figure(
        go.Heatmap(
            z=values,
            x=labels,
            y=labels,
            zmin=-limit,
            zmax=limit,
            colorscale="RdBu",
            texttemplate=f"%{{z:{form}}}" if len(labels) <= _FEW_TASKS else None,
            hovertemplate=f"%{{y}}, %{{x}}: %{{z:{form}}}<extra></extra>",
            hoverongaps=False,
        )
    )
    chart.update_layout(xaxis_title=columns, yaxis_title=rows)
    chart.update_yaxes(autorange="reversed", type="category")
    chart.update_xaxes(type="category")
    return chart


def dendrogram(figures: Figures) -> Any | None:
    """The tree of the tasks by agreement; None for a single task."""
    import plotly.graph_objects as go
    from scipy.cluster.hierarchy import dendrogram as place

    links = tree(figures.affinity)
    if links is None:
        return None
    placed = place(links, no_plot=True, labels=list(figures.tasks))
    chart = go.Figure()
    for across, up in zip(placed["icoord"], placed["dcoord"], strict=True):
        # the tree is in distances, one minus the agreement, which is what people read
        heights: Sequence[float] = [1 - height for height in up]
        chart.add_scatter(
            x=heights,
            y=across,
            mode="lines",
            line={"color": "#4c78a8"},
            hovertemplate="agreement %{x:+.2f}<extra></extra>",
            showlegend=False,
        )
    leaves = placed["ivl"]
    places = [5 + 10 * number for number in range(len(leaves))]
    chart.update_yaxes(tickvals=places, ticktext=leaves)
    lowest = 1 - float(links[:, 2].max())
    chart.update_xaxes(title="agreement", range=[1.02, min(lowest, 0.0) - 0.05])
    chart.add_vline(x=GROUP_COSINE, line_dash="dot", annotation_text="groups")
    return chart
