"""Charts as Plotly's figures: plain mappings of ``data`` and ``layout`` that the page draws.

A trace carries ``meta.series``, the place of its method in the page's legend: the page colours it by the
theme and hides it with the legend. All text is escaped here, because Plotly reads tags in labels.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mtlkit.evaluation.statistics import Floats

__all__ = [
    "Chart",
    "Interval",
    "Line",
    "Point",
    "Sample",
    "bar_chart",
    "box_chart",
    "heat_chart",
    "interval_chart",
    "line_chart",
    "metric_bounds",
    "point_chart",
]

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


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot; without a series it is grey, and part of the background."""

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
    bounds = _kept_bounds(bounds, [value for line in lines for value in line.y.tolist()])
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
        "yaxis": _axis(y_label, bounds, log=log_y),
        "hovermode": "x unified" if len(data) <= 8 else "closest",
    }
    names = ", ".join(line.label for line in lines)
    text = description or f"{y_label} against {x_label}, for {names}."
    return Chart(title, {"data": bands + data, "layout": layout}, text)


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
            "y": [shorten(sample.label)] * len(values),
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.5,
            "hovertemplate": "%{x:.4g}",
            "meta": {"series": sample.series},
        }
        for sample, values in kept
    ]
    names = ", ".join(f"{sample.label} {np.median(values):.4g}" for sample, values in kept)
    bounds = _kept_bounds(bounds, [value for _, values in kept for value in values])
    layout = _rows(x_label, bounds, len(kept), marker)
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
            "y": [shorten(sample.label)],
            "text": [f"{median:.4g}"],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": "%{x:.4g}",
            "meta": {"series": sample.series},
        }
        for sample, median in medians
    ]
    layout = _rows(x_label, (0.0, None), len(medians), marker)
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
                "y": [shorten(each.label)],
                "marker": {"size": 9},
                "error_x": bars if known else {"visible": False},
                "hovertemplate": f"%{{x:.3g}} ({each.low:.3g} to {each.high:.3g})",
                "meta": {"series": each.series},
            }
        )
    layout = _rows(x_label, NO_BOUNDS, len(kept), marker)
    names = ", ".join(f"{e.label} {e.mean:.3g} ({e.low:.3g} to {e.high:.3g})" for e in kept)
    return Chart(title, {"data": data, "layout": layout}, f"{x_label}: {names}.")


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
    """Methods as points; ``front`` is drawn as a grey line behind them."""
    kept = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (p.x > 0 or not log_x)]
    if not kept:
        return None
    data: list[dict[str, Any]] = []
    if front:
        data.append({"type": "scatter", "mode": "lines", "name": "front", **_coordinates(front)})
    grey = [point for point in kept if point.series is None]
    if grey:
        data.append({"type": "scatter", "mode": "markers", "name": "", **_coordinates(grey)})
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
        "xaxis": _axis(x_label, _kept_bounds(x_bounds, [point.x for point in kept]), log=log_x),
        "yaxis": _axis(y_label, _kept_bounds(y_bounds, [point.y for point in kept])),
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
    """A matrix, coloured from red below zero over white to blue above."""
    table = np.asarray(values, dtype=np.float64)
    known = np.abs(table[np.isfinite(table)])
    reach = float(known.max()) if known.size and known.max() > 0 else 1.0
    data = {
        "type": "heatmap",
        "z": table,
        "x": [shorten(name) for name in columns],
        "y": [shorten(name) for name in rows],
        "zmin": -reach,
        "zmax": reach,
        "colorscale": "RdBu",
        "texttemplate": "%{z:.2g}" if table.size <= 150 else "",
        "hovertemplate": "%{y}, %{x}: %{z:.4g}<extra></extra>",
        "colorbar": {"thickness": 10},
    }
    layout = {
        "xaxis": {"type": "category"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 120 + ROW * len(rows),
    }
    return Chart(title, {"data": [data], "layout": layout}, f"{label}: {len(rows)} by {len(columns)}.")


def plain(text: str) -> str:
    """Text that Plotly shows as it is."""
    return html.escape(text, quote=False)


def shorten(text: str, length: int = 26) -> str:
    """A label that leaves room for the chart."""
    return plain(text if len(text) <= length else text[: length - 1] + "…")


def thin_line(line: Line, points: int) -> Line:
    """Average neighbouring points where there are more than can be seen."""
    if len(line.x) <= points:
        return line
    bins = np.array_split(np.arange(len(line.x)), points)

    def average(values: Floats) -> Floats:
        known = [values[b][np.isfinite(values[b])] for b in bins]
        return np.array([k.mean() if k.size else np.nan for k in known])

    low, high = (None if v is None else average(v) for v in (line.low, line.high))
    return Line(line.series, line.label, average(line.x), average(line.y), low, high)


def _kept_bounds(bounds: Bounds, values: Sequence[float]) -> Bounds:
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
    low, high = np.clip(line.low, *bounds), np.clip(line.high, *bounds)  # clips nothing at None
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


def _axis(title: str, bounds: Bounds = NO_BOUNDS, *, log: bool = False) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": plain(title)}}
    if log:
        return {**axis, "type": "log", "exponentformat": "power"}
    low, high = bounds
    if low is not None:
        axis["minallowed"] = low
    if high is not None:
        axis["maxallowed"] = high
    return axis


def _rows(x_label: str, bounds: Bounds, number: int, marker: float | None) -> dict[str, Any]:
    """Layout of a chart with a row per method, the first on top."""
    layout: dict[str, Any] = {
        "xaxis": _axis(x_label, bounds),
        "yaxis": {"type": "category", "autorange": "reversed", "ticklabelstandoff": 4},
        "height": 90 + ROW * max(number, 2),
        "hovermode": "closest",
    }
    if marker is not None and math.isfinite(marker):
        layout["shapes"] = [
            {"type": "line", "x0": marker, "x1": marker, "y0": 0, "y1": 1, "yref": "paper"}
        ]
    return layout
