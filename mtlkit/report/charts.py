"""Charts as Plotly's figures: plain mappings of ``data`` and ``layout`` for the page.

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
Box: TypeAlias = tuple[float, float, float, float]
_ROW = 24
"""Height of a row in charts with a row per method, in pixels."""
_DIVERGING = [[0, "#b2182b"], [0.5, "#f3f3f3"], [1, "#2166ac"]]

_FRACTIONS = ("accuracy", "f1", "auc", "miou", "iou", "precision", "recall", "within", "share", "top")
_ERRORS = ("mse", "mae", "rmse", "error", "angle", "seconds")


@dataclass(frozen=True)
class Chart:
    """A figure with a title, and a description for screen readers."""

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


@dataclass(frozen=True)
class Row:
    """A method in a chart with a row per method: its mean with limits, and single values as dots."""

    series: int
    label: str
    mean: float
    low: float = math.nan
    high: float = math.nan
    values: Sequence[float] = ()


def metric_bounds(name: str) -> Bounds:
    """Return what a metric of this name can be: an accuracy is within 0 and 1, an error not below 0."""
    words = name.lower()
    if any(word in words for word in _ERRORS):
        return (0.0, None)
    if any(word in words for word in _FRACTIONS):
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
    points: int = 160,
) -> Chart | None:
    """Draw curves with confidence bands; None where there is nothing to see.

    Args:
        lines: of the methods.
        title: of the chart.
        x_label: of the axis.
        y_label: of the axis.
        log_y: logarithmic axis; values of 0 and below are left out.
        bounds: values that are possible; axis and bands end there.
        points: curves with more points than this are averaged.
    """
    data: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    bounds = _uncrossed(bounds, [value for line in lines for value in line.y.tolist()])
    for line in (_thin(line, points) for line in lines):
        y = np.where(line.y > 0, line.y, np.nan) if log_y else line.y
        if not np.isfinite(y).any():
            continue
        bands += _band(line, bounds, log_y)
        mode = "markers" if np.isfinite(y).sum() == 1 else "lines"
        data.append(scatter(line.series, line.label, line.x, y, mode=mode, hovertemplate="%{y:.4g}"))
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": plain(x_label)}},
        "yaxis": _axis(y_label, bounds, log=log_y),
        "hovermode": "x unified" if len(data) <= 8 else "closest",
    }
    names = ", ".join(line.label for line in lines)
    figure = {"data": bands + data, "layout": layout}
    return Chart(title, figure, f"{y_label} against {x_label}, for {names}.")


def point_chart(
    points: Sequence[Point],
    title: str,
    x_label: str,
    y_label: str,
    *,
    front: Sequence[Point] = (),
    x_bounds: Bounds = NO_BOUNDS,
    y_bounds: Bounds = NO_BOUNDS,
) -> Chart | None:
    """Draw methods as points; ``front`` is a gray line behind them."""
    kept = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    if not kept:
        return None
    gray = [point for point in kept if point.series is None]
    methods = [point for point in kept if point.series is not None]
    data = [_points(front, "front", mode="lines")] if front else []
    data += [_points(gray, "", mode="markers")] if gray else []
    for point, label in zip(methods, _label_boxes(methods), strict=True):
        mode, place = ("markers+text", {"textposition": label[0]}) if label else ("markers", {})
        data.append(
            _points([point], point.label, mode=mode, cliponaxis=False, marker={"size": 10}, **place)
        )
    layout = {
        "xaxis": _axis(x_label, _uncrossed(x_bounds, [point.x for point in kept])),
        "yaxis": _axis(y_label, _uncrossed(y_bounds, [point.y for point in kept])),
        "hovermode": "closest",
    }
    names = ", ".join(f"{p.label} ({p.x:.4g}, {p.y:.4g})" for p in methods)
    return Chart(title, {"data": data, "layout": layout}, f"{y_label} against {x_label}: {names}.")


def row_chart(
    rows: Sequence[Row],
    title: str,
    x_label: str,
    *,
    marker: float | None = None,
    bounds: Bounds = NO_BOUNDS,
    wide: bool = False,
) -> Chart | None:
    """Draw a row per method: its mean with its interval, and a faint dot per value.

    Args:
        rows: of the methods, the first on top; those without a finite mean are left out.
        title: of the chart.
        x_label: of the axis.
        marker: a value to draw a dashed line at.
        bounds: values that are possible; the axis ends there.
        wide: over the whole width of the page.
    """
    kept = [row for row in rows if math.isfinite(row.mean)]
    if not kept:
        return None
    data = []
    for row in kept:
        values = [value for value in row.values if math.isfinite(value)]
        name = plain(row.label)
        if len(values) > 1:
            dots = {"symbol": "circle-open", "size": 6}
            data.append(
                scatter(row.series, row.label, values, [name] * len(values), mode="markers", marker=dots,
                        hovertemplate="%{x:.4g}")
            )  # fmt: skip
        known = math.isfinite(row.low) and math.isfinite(row.high)
        limits = {"array": [row.high - row.mean], "arrayminus": [row.mean - row.low], "symmetric": False}
        hover = f"%{{x:.4g}} ({row.low:.4g} to {row.high:.4g})" if known else "%{x:.4g}"
        data.append(
            scatter(row.series, row.label, [row.mean], [name], mode="markers", marker={"size": 10},
                    error_x={"type": "data", **limits} if known else {"visible": False},
                    hovertemplate=hover, cliponaxis=False)
        )  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": _axis(
            x_label, _uncrossed(bounds, [v for row in kept for v in (row.mean, *row.values)])
        ),
        "yaxis": {**_name_axis([row.label for row in kept]), "autorange": "reversed"},
        "height": 90 + _ROW * max(len(kept), 2),
        "hovermode": "closest",
    }
    if marker is not None and math.isfinite(marker):
        line = {"type": "line", "x0": marker, "x1": marker, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [line]
    names = ", ".join(
        f"{r.label} {r.mean:.4g}" + (f" ({r.low:.4g} to {r.high:.4g})" if r.low == r.low else "")
        for r in kept
    )
    return Chart(title, {"data": data, "layout": layout}, f"{x_label}: {names}.", wide)


def heat_chart(
    values: Floats,
    names: Sequence[str],
    title: str,
    *,
    texts: Sequence[Sequence[str]] | None = None,
    reach: float = 1.0,
) -> Chart:
    """Draw a square matrix in colors from red below zero over white to blue above.

    Args:
        values: the matrix.
        names: of its rows and columns.
        title: of the chart.
        texts: what the cells show instead of the values.
        reach: absolute value with the strongest color.
    """
    shown = "z:.2f" if texts is None else "text"
    data: dict[str, Any] = {
        "type": "heatmap",
        "z": values,
        "x": [plain(name) for name in names],
        "y": [plain(name) for name in names],
        "zmin": -reach,
        "zmax": reach,
        "colorscale": _DIVERGING,  # Plotly's own RdBu is the other way round
        "texttemplate": f"%{{{shown}}}" if values.size <= 150 else "",
        "hovertemplate": f"%{{y}}, %{{x}}: %{{{shown}}}<extra></extra>",
        "colorbar": {"thickness": 10},
    }
    if texts is not None:
        data |= {"text": texts, "showscale": False}
    layout = {
        "xaxis": _name_axis(names),
        "yaxis": {**_name_axis(names), "autorange": "reversed"},
        "height": 120 + _ROW * len(names),
    }
    known = [
        f"{names[i]} and {names[j]} {values[i, j]:.2g}"
        for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True)
        if i < j
    ]
    more = f", and {len(known) - 10} more pairs" if len(known) > 10 else ""
    return Chart(title, {"data": [data], "layout": layout}, f"{title}: {', '.join(known[:10])}{more}.")


def scatter(series: int | None, label: str, x: Any, y: Any, **settings: Any) -> dict[str, Any]:
    """Return a trace of lines or markers; without a series the page draws it in gray."""
    meta = {} if series is None else {"meta": {"series": series}}
    return {"type": "scatter", "name": plain(label), "x": x, "y": y, **meta, **settings}


def plain(text: str) -> str:
    """Escape text so that Plotly shows it unchanged."""
    return html.escape(text, quote=False)


def shorten(text: str, length: int = 26) -> str:
    """Return a label that leaves room for the chart."""
    return plain(text if len(text) <= length else text[: length - 1] + "…")


def _name_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis of names; only its ticks are shortened, or names that start alike would be one."""
    full, short = [plain(name) for name in names], [shorten(name) for name in names]
    ticks = {} if full == short else {"tickvals": full, "ticktext": short}
    return {"type": "category", "ticklabelstandoff": 4, **ticks}


def _axis(title: str, bounds: Bounds = NO_BOUNDS, *, log: bool = False) -> dict[str, Any]:
    """Return an axis that ends where values are impossible."""
    axis: dict[str, Any] = {"title": {"text": plain(title)}}
    if log:
        return {**axis, "type": "log", "exponentformat": "power"}
    limits = zip(("minallowed", "maxallowed"), bounds, strict=True)
    return axis | {name: value for name, value in limits if value is not None}


def _uncrossed(bounds: Bounds, values: Sequence[float]) -> Bounds:
    """Return the bounds that no value crosses: an accuracy may be in percent, and no data are hidden."""
    known = [value for value in values if math.isfinite(value)]
    low, high = bounds
    slack = 1e-9
    return (
        None if low is None or any(value < low - slack for value in known) else low,
        None if high is None or any(value > high + slack for value in known) else high,
    )


def _points(points: Iterable[Point], label: str, **settings: Any) -> dict[str, Any]:
    listed = list(points)
    return scatter(
        listed[0].series if len(listed) == 1 else None,
        label,
        [point.x for point in listed],
        [point.y for point in listed],
        text=[shorten(point.label) for point in listed],
        hovertemplate="%{text}: %{x:.4g}, %{y:.4g}<extra></extra>",
        **settings,
    )


_PLOT, _LETTER = (320.0, 200.0), (6.5, 14.0)
"""Least size of a chart's plot, and size of a letter in its labels, in pixels."""
_POSITIONS = {"top right": (0, 1), "top left": (-1, 1), "bottom right": (0, -1), "bottom left": (-1, -1)}


def _label_boxes(points: Sequence[Point]) -> list[tuple[str, Box] | None]:
    """Choose a position and box for each point's label that covers nothing; None without any."""
    places = np.array([(point.x, point.y) for point in points]).reshape(-1, 2)
    low, reach = (places.min(0), np.ptp(places, axis=0)) if points else (0.0, 1.0)
    centers = (places - low) / np.where(reach > 0, reach, 1.0) * _PLOT
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in centers]
    chosen: list[tuple[str, Box] | None] = []
    for point, (x, y) in zip(points, centers, strict=True):
        width, height = _LETTER[0] * min(len(point.label), 26), _LETTER[1]
        chosen.append(None)
        for name, (left, up) in _POSITIONS.items():
            x0, y0 = x + left * width + (5 if left == 0 else -5), y + (5 if up > 0 else -5 - height)
            box = (x0, y0, x0 + width, y0 + height)
            inside = box[0] >= -20 and box[2] <= _PLOT[0] + 20
            if inside and not any(_overlap(box, other) for other in taken):
                chosen[-1] = (name, box)
                taken.append(box)
                break
    return chosen


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _thin(line: Line, points: int) -> Line:
    """Average neighboring points where there are more than can be seen."""
    if len(line.x) <= points:
        return line
    bins = np.array_split(np.arange(len(line.x)), points)

    def average(values: Floats) -> Floats:
        known = [values[b][np.isfinite(values[b])] for b in bins]
        return np.array([k.mean() if k.size else np.nan for k in known])

    low, high = (None if v is None else average(v) for v in (line.low, line.high))
    return Line(line.series, line.label, average(line.x), average(line.y), low, high)


def _band(line: Line, bounds: Bounds, log_y: bool) -> list[dict[str, Any]]:
    if line.low is None or line.high is None:
        return []
    low, high = line.low, line.high
    if bounds != NO_BOUNDS:  # NumPy before 2.1 clips by one bound or more
        low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    known = np.isfinite(low) & np.isfinite(high) & ((line.y > 0) | (not log_y))
    if log_y:
        # a band that reaches below 0 ends a decade below its curve
        low = np.where(low > 0, low, line.y / 10)
    if known.sum() < 2:
        return []
    edges = {"mode": "lines", "hoverinfo": "skip", "line": {"width": 0}}
    x = line.x[known]
    return [
        scatter(line.series, line.label, x, low[known], **edges),
        scatter(line.series, line.label, x, high[known], fill="tonexty", **edges),
    ]
