"""Charts as Plotly figures: plain mappings of ``data`` and ``layout`` for the page.

A trace has ``meta.series``, the index of its method in the legend: the page colors it by the theme and
hides it with the legend. All text is escaped here, because Plotly interprets tags in labels.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from mtlkit.report.statistics import Floats

Bounds: TypeAlias = tuple[float | None, float | None]
NO_BOUNDS: Bounds = (None, None)
Box: TypeAlias = tuple[float, float, float, float]
_ROW, _LOW_ROW, _MANY_ROWS = 24, 14, 40
"""Height of a row in pixels, height of one of many rows, and the limit of many."""
_MOST_PAIRS, _ROOMY, _ROTATED = 24, 6, 100
"""Most columns of a chart of layers, most columns of a narrow one, and height of rotated names."""
_DIVERGING = [[0, "#b2182b"], [0.5, "#f3f3f3"], [1, "#2166ac"]]

_FRACTIONS = ("accuracy", "f1", "auc", "miou", "iou", "precision", "recall", "within", "share", "top")
_ERRORS = ("mse", "mae", "rmse", "error", "angle", "seconds")


@dataclass(frozen=True)
class Chart:
    """A figure with a title and a description for screen readers."""

    title: str
    figure: dict[str, Any]
    description: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Line:
    """A curve with an optional band; ``series`` is its index in the legend."""

    series: int
    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot; without a series it is a gray background point."""

    series: int | None
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Row:
    """A row of a chart with a row per method: the mean with limits, and single values as dots."""

    series: int
    label: str
    mean: float
    low: float = math.nan
    high: float = math.nan
    values: Sequence[float] = ()


def metric_bounds(name: str) -> Bounds:
    """Return the possible range of a metric by its name: 0 to 1 for an accuracy, 0 up for an error."""
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
    """Draw curves with confidence bands; None if there is nothing to draw.

    On a logarithmic axis, values of 0 and below are left out. Axis and bands end at the ``bounds``.
    Neighbors are averaged in curves with more than ``points`` points.
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
        "yaxis": _log_axis(y_label, data + bands) if log_y else _axis(y_label, bounds),
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
) -> Chart | None:
    """Draw a row per method, the first at the top: mean, interval, and a faint dot per value.

    Rows without a finite mean are left out. A dashed line is drawn at ``marker``.
    """
    kept = [row for row in rows if math.isfinite(row.mean)]
    if not kept:
        return None
    data, texts = [], []
    for row in kept:
        values = [value for value in row.values if math.isfinite(value)]
        name, dots = plain(row.label), {"symbol": "circle-open", "size": 6}
        settings: dict[str, Any] = {"mode": "markers", "hovertemplate": "%{x:.4g}", "marker": dots}
        if len(values) > 1:
            data.append(scatter(row.series, row.label, values, [name] * len(values), **settings))
        settings |= {"marker": {"size": 10}, "cliponaxis": False, "error_x": {"visible": False}}
        texts.append(f"{row.label} {row.mean:.4g}")
        if math.isfinite(row.low) and math.isfinite(row.high):
            limits = {"array": [row.high - row.mean], "arrayminus": [row.mean - row.low]}
            settings["error_x"] = {"type": "data", "symmetric": False, **limits}
            settings["hovertemplate"] += f" ({row.low:.4g} to {row.high:.4g})"
            texts[-1] += f" ({row.low:.4g} to {row.high:.4g})"
        data.append(scatter(row.series, row.label, [row.mean], [name], **settings))
    layout: dict[str, Any] = {
        "xaxis": _axis(x_label, _uncrossed(bounds, [v for r in kept for v in (r.mean, *r.values)])),
        "yaxis": {**_name_axis([row.label for row in kept]), "autorange": "reversed"},
        "height": 90 + _ROW * max(len(kept), 2),
        "hovermode": "closest",
    }
    if marker is not None and math.isfinite(marker):
        line = {"type": "line", "x0": marker, "x1": marker, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [line]
    return Chart(title, {"data": data, "layout": layout}, f"{x_label}: {', '.join(texts)}.")


def heat_chart(
    values: Floats,
    names: Sequence[str],
    title: str,
    *,
    columns: Sequence[str] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> Chart:
    """Draw a matrix of values from -1 (red) through 0 (white) to 1 (blue).

    Without ``columns``, the columns have the names of the rows. Cells show ``texts`` instead of values.
    """
    across = names if columns is None else columns
    shown = "z:.2f" if texts is None else "text"
    data: dict[str, Any] = {
        "type": "heatmap",
        "z": values,
        "x": [plain(name) for name in across],
        "y": [plain(name) for name in names],
        "zmin": -1,
        "zmax": 1,
        "colorscale": _DIVERGING,  # Plotly's RdBu is reversed
        "texttemplate": f"%{{{shown}}}" if values.size <= 150 else "",
        "hovertemplate": f"%{{y}}, %{{x}}: %{{{shown}}}<extra></extra>",
        "colorbar": {"thickness": 10},
    }
    if texts is not None:
        data |= {"text": texts, "showscale": False}
    layout = {
        "xaxis": _name_axis(across),
        "yaxis": {**_name_axis(names), "autorange": "reversed"},
        "height": 120 + (_ROW if len(names) <= _MANY_ROWS else _LOW_ROW) * len(names),
    }
    known = [
        f"{names[i]} and {across[j]} {values[i, j]:.2g}"
        for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True)
        if i < j or columns is not None
    ]
    more = f", and {len(known) - 10} more" if len(known) > 10 else ""
    return Chart(title, {"data": [data], "layout": layout}, f"{title}: {', '.join(known[:10])}{more}.")


def layer_chart(layers: Mapping[str, Floats], pairs: Sequence[str], title: str) -> Chart | None:
    """Draw the mean cosine of each pair of tasks by layer; None without any value.

    Of many pairs, those with the lowest cosines are drawn.
    """
    values = np.array(list(layers.values()), dtype=np.float64).reshape(len(layers), len(pairs))
    known = np.isfinite(values)
    if not known.any():
        return None
    lowest = np.where(known, values, 1.0).min(axis=0)
    kept = np.sort(np.argsort(lowest, kind="stable")[:_MOST_PAIRS])
    chart = heat_chart(values[:, kept], list(layers), title, columns=[pairs[k] for k in kept])
    chart.figure["layout"]["height"] += _ROTATED
    return replace(chart, wide=len(kept) > _ROOMY)


def scatter(series: int | None, label: str, x: Any, y: Any, **settings: Any) -> dict[str, Any]:
    """Return a trace of lines or markers; the page draws it in gray if it has no series."""
    meta = {} if series is None else {"meta": {"series": series}}
    return {"type": "scatter", "name": plain(label), "x": x, "y": y, **meta, **settings}


def plain(text: str) -> str:
    """Escape text so that Plotly shows it unchanged."""
    return html.escape(text, quote=False)


def shorten(text: str) -> str:
    """Shorten a label to 26 characters, keeping its start and end.

    >>> shorten("normalize(burn_in=20)+uw+imtl_g")
    'normalize(bur…0)+uw+imtl_g'
    """
    return plain(text if len(text) <= 26 else f"{text[:13]}…{text[-12:]}")


def _name_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis of names; only tick labels are shortened, so that similar names stay apart."""
    full, short = [plain(name) for name in names], [shorten(name) for name in names]
    ticks = {} if full == short else {"tickvals": full, "ticktext": short}
    return {"type": "category", "ticklabelstandoff": 4, **ticks}


def _log_axis(title: str, traces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a logarithmic axis; over few decades, with labels at 1, 2 and 5 only, to avoid overlap."""
    values = np.concatenate([trace["y"] for trace in traces])
    decades = np.log10(np.nanmax(values) / np.nanmin(values))
    ticks = {"dtick": "D2"} if 0.7 < decades < 2.5 else {}
    return {"title": {"text": plain(title)}, "type": "log", "exponentformat": "power", **ticks}


def _axis(title: str, bounds: Bounds = NO_BOUNDS) -> dict[str, Any]:
    """Return an axis that ends at the bounds."""
    axis: dict[str, Any] = {"title": {"text": plain(title)}}
    limits = zip(("minallowed", "maxallowed"), bounds, strict=True)
    return axis | {name: value for name, value in limits if value is not None}


def _uncrossed(bounds: Bounds, values: Sequence[float]) -> Bounds:
    """Drop bounds that a value crosses, such as an accuracy in percent, so that no data are hidden."""
    known = [value for value in values if math.isfinite(value)]
    low, high = bounds
    return (
        None if low is None or min(known, default=low) < low - 1e-9 else low,
        None if high is None or max(known, default=high) > high + 1e-9 else high,
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
"""Smallest size of a plot, and size of a letter in its labels, in pixels."""


def _label_boxes(points: Sequence[Point]) -> list[tuple[str, Box] | None]:
    """Choose a free position for the label of each point; None if there is none."""
    places = np.array([(point.x, point.y) for point in points]).reshape(-1, 2)
    low, reach = (places.min(0), np.ptp(places, axis=0)) if points else (0.0, 1.0)
    centers = (places - low) / np.where(reach > 0, reach, 1.0) * _PLOT
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in centers]
    chosen: list[tuple[str, Box] | None] = []
    for point, (x, y) in zip(points, centers, strict=True):
        width, height = _LETTER[0] * min(len(point.label), 26), _LETTER[1]
        boxes = {
            "top right": (x + 5, y + 5, x + 5 + width, y + 5 + height),
            "top left": (x - 5 - width, y + 5, x - 5, y + 5 + height),
            "bottom right": (x + 5, y - 5 - height, x + 5 + width, y - 5),
            "bottom left": (x - 5 - width, y - 5 - height, x - 5, y - 5),
        }
        free = [
            (name, box)
            for name, box in boxes.items()
            if box[0] >= -20 and box[2] <= _PLOT[0] + 20 and not any(_overlap(box, o) for o in taken)
        ]
        chosen.append(free[0] if free else None)
        taken += [box for _, box in free[:1]]
    return chosen


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _thin(line: Line, points: int) -> Line:
    """Average neighboring points if there are more than can be seen."""
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
    if bounds != NO_BOUNDS:  # NumPy before 2.1 needs at least one bound
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
