"""Charts over two axes as Plotly's figures: plain mappings of ``data`` and ``layout`` for the page.

A trace carries ``meta.series``, the place of its method in the page's legend: the page colors it by the
theme and hides it with the legend. All text is escaped here, because Plotly reads tags in labels.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mtlkit.report.statistics import Floats

Bounds: TypeAlias = tuple[float | None, float | None]
NO_BOUNDS: Bounds = (None, None)
ROW = 24
"""Height of a method in charts with a row per method, in pixels."""

_SHARES = ("accuracy", "f1", "auc", "miou", "iou", "precision", "recall", "within", "share", "top")
_ERRORS = ("mse", "mae", "rmse", "error", "angle", "seconds")


@dataclass(frozen=True)
class Chart:
    """A figure with a title, and a description for those who do not see it."""

    title: str
    figure: dict[str, Any]
    description: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Line:
    """A curve, with a band where there is one; ``series`` is its place in the legend."""

    series: int
    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot; without a series it is gray, and part of the background."""

    series: int | None
    label: str
    x: float
    y: float


def metric_bounds(name: str) -> Bounds:
    """What a metric of this name can be: an accuracy is within 0 and 1, an error not below 0."""
    words = name.lower()
    if any(word in words for word in _ERRORS):
        return (0.0, None)
    if any(word in words for word in _SHARES):
        return (0.0, 1.0)
    return (None, 1.0) if words in ("r2", "kappa", "mcc") else NO_BOUNDS


def line_chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    bounds: Bounds = NO_BOUNDS,
    description: str = "",
    points: int = 160,
) -> Chart | None:
    """Curves with confidence bands; None where there is nothing to see.

    Args:
        lines: of the methods.
        title: of the chart.
        x_label: of the axis.
        y_label: of the axis.
        log_y: logarithmic axis; what is not above 0 is left out.
        bounds: values that are possible; axis and bands end there.
        description: for those who do not see it.
        points: more points of a curve than this are averaged.
    """
    data: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    bounds = kept_bounds(bounds, [value for line in lines for value in line.y.tolist()])
    for line in lines:
        thinned = thin_line(line, points)
        y = np.where(thinned.y > 0, thinned.y, np.nan) if log_y else thinned.y
        if not np.isfinite(y).any():
            continue
        common = {"legendgroup": str(line.series), "meta": {"series": line.series}}
        if thinned.low is not None and thinned.high is not None:
            bands += _band(thinned, common, bounds, log_y)
        single = np.isfinite(y).sum() == 1
        data.append(
            {
                "type": "scatter",
                "mode": "markers" if single else "lines",
                "name": plain(line.label),
                "x": thinned.x,
                "y": y,
                "hovertemplate": "%{y:.4g}",
                **common,
            }
        )
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": plain(x_label)}},
        "yaxis": chart_axis(y_label, bounds, log=log_y),
        "hovermode": "x unified" if len(data) <= 8 else "closest",
    }
    names = ", ".join(line.label for line in lines)
    text = description or f"{y_label} against {x_label}, for {names}."
    return Chart(title, {"data": bands + data, "layout": layout}, text)


def point_chart(
    points: Sequence[Point],
    title: str,
    x_label: str,
    y_label: str,
    *,
    front: Sequence[Point] = (),
    x_bounds: Bounds = NO_BOUNDS,
    y_bounds: Bounds = NO_BOUNDS,
    log_x: bool = False,
) -> Chart | None:
    """Methods as points; ``front`` is drawn as a gray line behind them."""
    kept = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (p.x > 0 or not log_x)]
    if not kept:
        return None
    data: list[dict[str, Any]] = []
    if front:
        data.append({"type": "scatter", "mode": "lines", "name": "front", **_coordinates(front)})
    gray = [point for point in kept if point.series is None]
    if gray:
        data.append({"type": "scatter", "mode": "markers", "name": "", **_coordinates(gray)})
    middle = (min(point.x for point in kept) + max(point.x for point in kept)) / 2
    for point in kept:
        if point.series is not None:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "name": plain(point.label),
                    "textposition": "top right" if point.x <= middle else "top left",
                    "cliponaxis": False,
                    "marker": {"size": 10},
                    "meta": {"series": point.series},
                    **_coordinates([point]),
                }
            )
    layout = {
        "xaxis": chart_axis(x_label, kept_bounds(x_bounds, [point.x for point in kept]), log=log_x),
        "yaxis": chart_axis(y_label, kept_bounds(y_bounds, [point.y for point in kept])),
        "hovermode": "closest",
    }
    names = ", ".join(f"{p.label} ({p.x:.4g}, {p.y:.4g})" for p in kept if p.series is not None)
    return Chart(title, {"data": data, "layout": layout}, f"{y_label} against {x_label}: {names}.")


def heat_chart(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    label: str,
) -> Chart:
    """A matrix, colored from red below zero over white to blue above."""
    table = np.asarray(values, dtype=np.float64)
    known = np.abs(table[np.isfinite(table)])
    reach = float(known.max()) if known.size and known.max() > 0 else 1.0
    data = {
        "type": "heatmap",
        "z": table,
        "x": [plain(name) for name in columns],
        "y": [plain(name) for name in rows],
        "zmin": -reach,
        "zmax": reach,
        "colorscale": [[0, "#b2182b"], [0.5, "#f3f3f3"], [1, "#2166ac"]],  # RdBu is the other way round
        "texttemplate": "%{z:.2g}" if table.size <= 150 else "",
        "hovertemplate": "%{y}, %{x}: %{z:.4g}<extra></extra>",
        "colorbar": {"thickness": 10},
    }
    layout = {
        "xaxis": name_axis(columns),
        "yaxis": {**name_axis(rows), "autorange": "reversed"},
        "height": 120 + ROW * len(rows),
    }
    return Chart(title, {"data": [data], "layout": layout}, f"{label}: {len(rows)} by {len(columns)}.")


def plain(text: str) -> str:
    """Text that Plotly shows as it is."""
    return html.escape(text, quote=False)


def shorten(text: str, length: int = 26) -> str:
    """A label that leaves room for the chart."""
    return plain(text if len(text) <= length else text[: length - 1] + "…")


def name_axis(names: Sequence[str]) -> dict[str, Any]:
    """An axis of names; only its ticks shorten them, or long names that start alike would be one."""
    whole, short = [plain(name) for name in names], [shorten(name) for name in names]
    ticks = {} if whole == short else {"tickvals": whole, "ticktext": short}
    return {"type": "category", **ticks}


def thin_line(line: Line, points: int) -> Line:
    """Average neighboring points where there are more than can be seen."""
    if len(line.x) <= points:
        return line
    bins = np.array_split(np.arange(len(line.x)), points)

    def average(values: Floats) -> Floats:
        known = [values[b][np.isfinite(values[b])] for b in bins]
        return np.array([k.mean() if k.size else np.nan for k in known])

    low, high = (None if v is None else average(v) for v in (line.low, line.high))
    return Line(line.series, line.label, average(line.x), average(line.y), low, high)


def kept_bounds(bounds: Bounds, values: Sequence[float]) -> Bounds:
    """The bounds that no value crosses: an accuracy may be in percent, and data are never hidden."""
    known = [value for value in values if math.isfinite(value)]
    low, high = bounds
    slack = 1e-9
    return (
        None if low is None or any(value < low - slack for value in known) else low,
        None if high is None or any(value > high + slack for value in known) else high,
    )


def _coordinates(points: Iterable[Point]) -> dict[str, Any]:
    listed = list(points)
    return {
        "x": [point.x for point in listed],
        "y": [point.y for point in listed],
        "text": [shorten(point.label) for point in listed],
        "hovertemplate": "%{text}: %{x:.4g}, %{y:.4g}<extra></extra>",
    }


def _band(line: Line, common: dict[str, Any], bounds: Bounds, log_y: bool) -> list[dict[str, Any]]:
    assert line.low is not None
    assert line.high is not None
    low, high = line.low, line.high
    if bounds != NO_BOUNDS:  # NumPy before 2.1 clips by one bound or more
        low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    known = np.isfinite(low) & np.isfinite(high) & ((line.y > 0) | (not log_y))
    if log_y:
        # a band that reaches below 0 ends a decade below its curve
        low = np.where(low > 0, low, line.y / 10)
    if known.sum() < 2:
        return []
    edge = {"type": "scatter", "mode": "lines", "x": line.x[known], "hoverinfo": "skip", **common}
    return [
        {**edge, "y": low[known], "line": {"width": 0}},
        {**edge, "y": high[known], "line": {"width": 0}, "fill": "tonexty"},
    ]


def chart_axis(title: str, bounds: Bounds = NO_BOUNDS, *, log: bool = False) -> dict[str, Any]:
    """An axis that ends where values are impossible."""
    axis: dict[str, Any] = {"title": {"text": plain(title)}}
    if log:
        return {**axis, "type": "log", "exponentformat": "power"}
    low, high = bounds
    if low is not None:
        axis["minallowed"] = low
    if high is not None:
        axis["maxallowed"] = high
    return axis
