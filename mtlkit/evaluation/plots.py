"""Plots as inline SVG: lines with bands, boxes, bars. Colours are CSS variables, so a theme is a style.

Each mark carries the class ``mN`` of its method, N being the method's place in the comparison: one rule
of CSS hides or colours a method in every plot.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

__all__ = ["PALETTE", "Boxes", "Line", "Panel", "bar_chart", "box_chart", "dash", "line_chart"]

Floats = NDArray[np.float64]

# Okabe and Ito's colours, which people with any colour vision can tell apart; (light theme, dark theme).
# Yellow and black are exchanged for tones that stand out from both backgrounds.
PALETTE = (
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#f07f35"),
    ("#009e73", "#21c294"),
    ("#cc79a7", "#e29cc3"),
    ("#b58900", "#e6b422"),
    ("#56b4e9", "#8fd0f5"),
    ("#6f4fae", "#ab8ff0"),
    ("#5c6670", "#a9b4be"),
)
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MAX_POINTS = 160

_ids = count()


@dataclass(frozen=True)
class Line:
    """One method's curve; ``method`` is its place in the comparison."""

    method: int
    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Boxes:
    """One method's values over seeds."""

    method: int
    label: str
    values: Sequence[float]


@dataclass
class Panel:
    """Size and margins of a plot, in pixels of its own frame."""

    width: int = 420
    height: int = 260
    left: int = 56
    right: int = 14
    top: int = 12
    bottom: int = 42
    parts: list[str] = field(default_factory=list)

    @property
    def inner_width(self) -> float:
        """Size of the area inside the axes."""
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> float:
        """Size of the area inside the axes."""
        return self.height - self.top - self.bottom

    def draw(self, title: str, description: str) -> str:
        """The figure, with a title and a description for those who do not see it."""
        name = f"plot{next(_ids)}"
        return (
            f'<figure class="plot"><figcaption>{html.escape(title)}</figcaption>'
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-labelledby="{name}t {name}d" preserveAspectRatio="xMidYMid meet">'
            f'<title id="{name}t">{html.escape(title)}</title>'
            f'<desc id="{name}d">{html.escape(description)}</desc>'
            + "".join(self.parts)
            + "</svg></figure>"
        )


def restart_ids() -> None:
    """Number the plots from 0 again, so that a report of the same results is the same file."""
    global _ids
    _ids = count()


def dash(slot: int) -> str:
    """Dash pattern for a place in the palette; it tells apart the places that share a colour."""
    return _DASHES[slot // len(PALETTE) % len(_DASHES)]


def nice_ticks(low: float, high: float, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that span the range; whole ones if asked for."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high <= low:
        pad = abs(low) * 0.05 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, 5.0 if step == 2.5 else math.ceil(step))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range, thinned where there are many; 2 and 5 times these where few."""
    if high / low < 3:
        return [tick for tick in nice_ticks(low, high, 4) if low <= tick <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0,) if last - first > 3 else (1.0, 2.0, 5.0)
    powers = range(first, last + 1, -(-(last - first) // 6))
    return [t for power in powers for f in factors if low <= (t := f * 10.0**power) <= high]


def tick_text(value: float) -> str:
    """A number with as few characters as possible."""
    if value == 0 or abs(value) < 1e-12:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1e4:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def line_chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    description: str = "",
) -> str:
    """Curves with confidence bands. What is not finite, or not above 0 on a log scale, is a gap."""
    panel = Panel()
    lines = [_thin(line) for line in lines]
    shown = np.concatenate([np.concatenate([a for a in (ln.y, ln.low, ln.high) if a is not None])
                            for ln in lines]) if lines else np.array([])  # fmt: skip
    known = shown[np.isfinite(shown) & ((shown > 0) | (not log_y))]
    x_all = np.concatenate([line.x for line in lines]) if lines else np.array([])
    if known.size == 0 or x_all.size == 0:
        return ""
    y_low, y_high = _robust_range([line.y for line in lines], known, log_y)
    ticks = log_ticks(y_low / 1.08, y_high * 1.08) if log_y else nice_ticks(y_low, y_high)
    bottom, top = (y_low / 1.08, y_high * 1.08) if log_y else (ticks[0], ticks[-1])
    x_ticks = nice_ticks(float(x_all.min()), float(x_all.max()), 6, whole=True)
    if len({float(x) for x in x_all}) > 1:
        # the axes end with the curves: rounding the limits up would waste space in a small plot
        x_first, x_last = float(x_all.min()), float(x_all.max())
        x_ticks = [tick for tick in x_ticks if x_first <= tick <= x_last]
    else:
        x_first, x_last = x_ticks[0], x_ticks[-1]

    def place_x(value: Floats) -> Floats:
        return panel.left + (value - x_first) / (x_last - x_first) * panel.inner_width

    def place_y(value: Floats) -> Floats:
        if log_y:
            value = np.where(value > 0, value, np.nan)
            share = (np.log10(value) - math.log10(bottom)) / (math.log10(top) - math.log10(bottom))
        else:
            share = (value - bottom) / (top - bottom)
        return panel.top + (1 - share) * panel.inner_height

    _frame(panel, x_ticks, ticks, place_x, place_y, x_label, y_label)
    clip = f"clip{next(_ids)}"
    panel.parts.append(
        f'<clipPath id="{clip}"><rect x="{panel.left}" y="{panel.top - 2}" '
        f'width="{panel.inner_width}" height="{panel.inner_height + 4}"/></clipPath>'
        f'<g clip-path="url(#{clip})">'
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        for line in lines:
            if line.low is not None and line.high is not None:
                low = np.where(line.low > 0, line.low, bottom) if log_y else line.low
                panel.parts.append(_band(line, place_x(line.x), place_y(low), place_y(line.high)))
        for line in lines:
            panel.parts.append(_curve(line, place_x(line.x), place_y(line.y)))
    panel.parts.append("</g>")
    names = ", ".join(line.label for line in lines)
    return panel.draw(title, description or f"{y_label} against {x_label}, for {names}.")


def box_chart(
    groups: Sequence[Boxes],
    title: str,
    x_label: str,
    *,
    marker: float | None = None,
    description: str = "",
) -> str:
    """A horizontal box per method: quartiles, median, whiskers to the extremes, and every seed's dot.

    Args:
        groups: methods from top to bottom.
        title: of the plot.
        x_label: of the values.
        marker: a value to draw a line at, such as the baseline's.
        description: for those who do not see it.
    """
    kept = [(group, np.array([v for v in group.values if math.isfinite(v)])) for group in groups]
    kept = [(group, values) for group, values in kept if values.size]
    if not kept:
        return ""
    longest = max(len(group.label) for group, _ in kept)
    left = min(30 + int(6.4 * longest), 170)
    panel = Panel(height=54 + 22 * len(kept), left=left)
    everything = np.concatenate([values for _, values in kept])
    extremes = [everything.min(), everything.max(), *([] if marker is None else [marker])]
    ticks = nice_ticks(float(min(extremes)), float(max(extremes)), 4)

    def place(value: float) -> float:
        return panel.left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * panel.inner_width

    for tick in ticks:
        x = place(tick)
        panel.parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{panel.top}" '
            f'y2="{panel.height - panel.bottom}"/>'
            f'<text class="tick" x="{x:.1f}" y="{panel.height - panel.bottom + 15}" '
            f'text-anchor="middle">{tick_text(tick)}</text>'
        )
    if marker is not None and math.isfinite(marker):
        panel.parts.append(
            f'<line class="marker" x1="{place(marker):.1f}" x2="{place(marker):.1f}" '
            f'y1="{panel.top - 4}" y2="{panel.height - panel.bottom}"/>'
        )
    for index, (group, values) in enumerate(kept):
        y = panel.top + 11 + 22 * index
        low, first, middle, third, high = (
            place(q) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        )
        dots = "".join(f'<circle cx="{place(v):.1f}" cy="{y}" r="2.2"/>' for v in values)
        panel.parts.append(
            f'<text class="name" x="{panel.left - 8}" y="{y + 4}" text-anchor="end">'
            f"{html.escape(_shorten(group.label, 25))}</text>"
            f'<g class="box m{group.method}"><line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
            f'<rect x="{first:.1f}" y="{y - 6}" width="{max(third - first, 0.8):.1f}" height="12"/>'
            f'<line class="median" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 7}" y2="{y + 7}"/>'
            f"{dots}<title>{html.escape(group.label)}: median {np.median(values):.4g}, "
            f"{values.size} seeds</title></g>"
        )
    panel.parts.append(
        f'<text class="label" x="{panel.left + panel.inner_width / 2}" y="{panel.height - 8}" '
        f'text-anchor="middle">{html.escape(x_label)}</text>'
    )
    names = ", ".join(f"{group.label} {np.median(values):.4g}" for group, values in kept)
    return panel.draw(title, description or f"{x_label} over seeds; medians: {names}.")


def bar_chart(bars: Sequence[Boxes], title: str, x_label: str, *, marker: float | None = None) -> str:
    """A horizontal bar per method at the median of its values, from zero."""
    kept = [(bar, [v for v in bar.values if math.isfinite(v)]) for bar in bars]
    kept = [(bar, values) for bar, values in kept if values]
    if not kept:
        return ""
    medians = [float(np.median(values)) for _, values in kept]
    longest = max(len(bar.label) for bar, _ in kept)
    left = min(30 + int(6.4 * longest), 170)
    panel = Panel(height=54 + 22 * len(kept), left=left, right=44)
    ticks = nice_ticks(0.0, max([*medians, marker or 0.0]), 4)

    def place(value: float) -> float:
        return panel.left + value / ticks[-1] * panel.inner_width

    for tick in ticks:
        panel.parts.append(
            f'<line class="grid" x1="{place(tick):.1f}" x2="{place(tick):.1f}" y1="{panel.top}" '
            f'y2="{panel.height - panel.bottom}"/>'
            f'<text class="tick" x="{place(tick):.1f}" y="{panel.height - panel.bottom + 15}" '
            f'text-anchor="middle">{tick_text(tick)}</text>'
        )
    for index, ((bar, _), median) in enumerate(zip(kept, medians, strict=True)):
        y = panel.top + 11 + 22 * index
        panel.parts.append(
            f'<text class="name" x="{panel.left - 8}" y="{y + 4}" text-anchor="end">'
            f"{html.escape(_shorten(bar.label, 25))}</text>"
            f'<g class="bar m{bar.method}"><rect x="{panel.left}" y="{y - 7}" '
            f'width="{max(place(median) - panel.left, 0.5):.1f}" height="14" rx="1.5"/>'
            f'<text class="tick" x="{place(median) + 5:.1f}" y="{y + 4}">{median:.2f}</text></g>'
        )
    if marker is not None:
        panel.parts.append(
            f'<line class="marker" x1="{place(marker):.1f}" x2="{place(marker):.1f}" '
            f'y1="{panel.top - 4}" y2="{panel.height - panel.bottom}"/>'
        )
    panel.parts.append(
        f'<text class="label" x="{panel.left + panel.inner_width / 2}" y="{panel.height - 8}" '
        f'text-anchor="middle">{html.escape(x_label)}</text>'
    )
    names = ", ".join(
        f"{bar.label} {median:.2f}" for (bar, _), median in zip(kept, medians, strict=True)
    )
    return panel.draw(title, f"{x_label}: {names}.")


def _frame(
    panel: Panel,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    place_x: object,
    place_y: object,
    x_label: str,
    y_label: str,
) -> None:
    base = panel.height - panel.bottom
    for tick, y in zip(y_ticks, place_y(np.array(y_ticks)), strict=True):  # type: ignore[operator]
        panel.parts.append(
            f'<line class="grid" x1="{panel.left}" x2="{panel.width - panel.right}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{panel.left - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
            f"{tick_text(tick)}</text>"
        )
    for tick, x in zip(x_ticks, place_x(np.array(x_ticks)), strict=True):  # type: ignore[operator]
        panel.parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick" x="{x:.1f}" y="{base + 16}" text-anchor="middle">'
            f"{tick_text(tick)}</text>"
        )
    middle = panel.top + panel.inner_height / 2
    panel.parts.append(
        f'<line class="axis" x1="{panel.left}" x2="{panel.width - panel.right}" '
        f'y1="{base}" y2="{base}"/>'
        f'<text class="label" x="{panel.left + panel.inner_width / 2}" y="{panel.height - 8}" '
        f'text-anchor="middle">{html.escape(x_label)}</text>'
        f'<text class="label" transform="translate(12 {middle:.1f}) rotate(-90)" '
        f'text-anchor="middle">{html.escape(y_label)}</text>'
    )


def _curve(line: Line, x: Floats, y: Floats) -> str:
    title = f"<title>{html.escape(line.label)}</title>"
    if np.isfinite(y).sum() == 1:
        index = int(np.flatnonzero(np.isfinite(y))[0])
        place = f'cx="{x[index]:.1f}" cy="{y[index]:.1f}"'
        return f'<circle class="dot m{line.method}" {place} r="3">{title}</circle>'
    return f'<path class="curve m{line.method}" d="{_path(x, y)}">{title}</path>'


def _band(line: Line, x: Floats, low: Floats, high: Floats) -> str:
    pieces = []
    for start, stop in _stretches(np.isfinite(low) & np.isfinite(high)):
        if stop - start < 2:
            continue
        upper = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:stop], high[start:stop], strict=True)]
        lower = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:stop], low[start:stop], strict=True)]
        pieces.append("M" + "L".join(upper + lower[::-1]) + "Z")
    return f'<path class="band m{line.method}" d="{"".join(pieces)}"/>' if pieces else ""


def _path(x: Floats, y: Floats) -> str:
    pieces = []
    for start, stop in _stretches(np.isfinite(y)):
        pieces.append(
            "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[start:stop], y[start:stop], strict=True))
        )
    return "".join(pieces)


def _stretches(known: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Beginnings and ends of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _thin(line: Line) -> Line:
    """Average neighbouring points where there are more than can be seen."""
    points = len(line.x)
    if points <= _MAX_POINTS:
        return line
    bins = np.array_split(np.arange(points), _MAX_POINTS)

    def average(values: Floats | None) -> Floats | None:
        if values is None:
            return None
        with np.errstate(invalid="ignore"):
            sums = [(values[b][np.isfinite(values[b])]) for b in bins]
        return np.array([s.mean() if s.size else np.nan for s in sums])

    x, y = average(line.x), average(line.y)
    assert x is not None
    assert y is not None
    return Line(line.method, line.label, x, y, average(line.low), average(line.high))


def _robust_range(curves: Sequence[Floats], known: Floats, log_y: bool) -> tuple[float, float]:
    """Limits of the y axis: the curves, plus their bands unless these would dwarf them."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values) & ((values > 0) | (not log_y))]
    if values.size == 0:
        values = known
    low, high = float(values.min()), float(values.max())
    if log_y:
        return low, high
    reach = max(high - low, 1e-12)
    return max(float(known.min()), low - 0.25 * reach), min(float(known.max()), high + 0.25 * reach)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
