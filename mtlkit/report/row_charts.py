"""Charts with a row per method, as Plotly's figures: boxes, bars and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtlkit.report.charts import (
    NO_BOUNDS,
    ROW,
    Bounds,
    Chart,
    chart_axis,
    kept_bounds,
    name_axis,
    plain,
)


@dataclass(frozen=True)
class Sample:
    """Values over seeds."""

    series: int
    label: str
    values: Sequence[float]


@dataclass(frozen=True)
class Interval:
    """A mean with limits."""

    series: int
    label: str
    mean: float
    low: float
    high: float


def box_chart(
    samples: Sequence[Sample],
    title: str,
    x_label: str,
    *,
    marker: float | None = None,
    bounds: Bounds = NO_BOUNDS,
) -> Chart | None:
    """A box per method with a dot per seed; ``marker`` is a value to draw a line at."""
    kept = [(sample, [v for v in sample.values if math.isfinite(v)]) for sample in samples]
    kept = [(sample, values) for sample, values in kept if values]
    if not kept:
        return None
    data = [
        {
            "type": "box",
            "orientation": "h",
            "name": plain(sample.label),
            "x": values,
            "y": [plain(sample.label)] * len(values),
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.5,
            "hovertemplate": "%{x:.4g}",
            "meta": {"series": sample.series},
        }
        for sample, values in kept
    ]
    names = ", ".join(f"{sample.label} {np.median(values):.4g}" for sample, values in kept)
    bounds = kept_bounds(bounds, [value for _, values in kept for value in values])
    layout = _rows(x_label, bounds, [sample.label for sample, _ in kept], marker)
    return Chart(title, {"data": data, "layout": layout}, f"{x_label} over seeds; medians: {names}.")


def bar_chart(
    samples: Sequence[Sample], title: str, x_label: str, *, marker: float | None = None
) -> Chart | None:
    """A bar per method at the median of its values, from zero."""
    medians = [
        (sample, float(np.median(known)))
        for sample in samples
        if (known := [v for v in sample.values if math.isfinite(v)])
    ]
    if not medians:
        return None
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain(sample.label),
            "x": [median],
            "y": [plain(sample.label)],
            "text": [f"{median:.4g}"],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": "%{x:.4g}",
            "meta": {"series": sample.series},
        }
        for sample, median in medians
    ]
    layout = _rows(x_label, (0.0, None), [sample.label for sample, _ in medians], marker)
    # room for the figures behind the bars
    layout["xaxis"]["range"] = [0, 1.2 * max([*(median for _, median in medians), marker or 0.0]) or 1]
    names = ", ".join(f"{sample.label} {median:.4g}" for sample, median in medians)
    return Chart(title, {"data": data, "layout": layout}, f"{x_label}: {names}.")


def interval_chart(
    intervals: Sequence[Interval], title: str, x_label: str, *, marker: float | None = 0.0
) -> Chart | None:
    """A dot per method with its interval, against a line at ``marker``."""
    kept = [each for each in intervals if math.isfinite(each.mean)]
    if not kept:
        return None
    data = []
    for each in kept:
        known = math.isfinite(each.low) and math.isfinite(each.high)
        bars: dict[str, Any] = {"type": "data", "symmetric": False}
        bars |= {"array": [each.high - each.mean], "arrayminus": [each.mean - each.low]}
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(each.label),
                "x": [each.mean],
                "y": [plain(each.label)],
                "marker": {"size": 9},
                "error_x": bars if known else {"visible": False},
                "hovertemplate": f"%{{x:.3g}} ({each.low:.3g} to {each.high:.3g})",
                "meta": {"series": each.series},
            }
        )
    layout = _rows(x_label, NO_BOUNDS, [each.label for each in kept], marker)
    names = ", ".join(f"{e.label} {e.mean:.3g} ({e.low:.3g} to {e.high:.3g})" for e in kept)
    return Chart(title, {"data": data, "layout": layout}, f"{x_label}: {names}.")


def _rows(x_label: str, bounds: Bounds, labels: Sequence[str], marker: float | None) -> dict[str, Any]:
    """Layout of a chart with a row per method, the first on top."""
    layout: dict[str, Any] = {
        "xaxis": chart_axis(x_label, bounds),
        "yaxis": {**name_axis(labels), "autorange": "reversed", "ticklabelstandoff": 4},
        "height": 90 + ROW * max(len(labels), 2),
        "hovermode": "closest",
    }
    if marker is not None and math.isfinite(marker):
        layout["shapes"] = [
            {"type": "line", "x0": marker, "x1": marker, "y0": 0, "y1": 1, "yref": "paper"}
        ]
    return layout
