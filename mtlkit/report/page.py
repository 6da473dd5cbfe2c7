"""One self-contained HTML page: text, sortable tables and Plotly's charts; it needs no other file.

The templates are in ``templates/``. A page has one legend for all its charts; a name in it has one
color everywhere, and a click hides it everywhere.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mtlkit._version import __version__
from mtlkit.report.charts import Chart

# Okabe and Ito's colors, which people with any color vision can tell apart; (light theme, dark theme).
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
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
"""What tells lines and points of one color apart."""
MANY = 12
"""More charts than this in a group are collapsed at first."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it says.
        value: what it is sorted by; None comes last either way.
        small: a line below in small letters.
        mark: behind the text, raised.
        hint: shown by the mouse.
        best: in bold letters.
        series: place in the legend whose color it shows.
        code: in the letters of code.
    """

    text: str
    value: float | None = None
    small: str = ""
    mark: str = ""
    hint: str = ""
    best: bool = False
    series: int | None = None
    code: bool = False


@dataclass(frozen=True)
class Head:
    """A heading; ``better`` is what the first click puts on top: ``high`` or ``low``."""

    text: str
    better: str = "high"


@dataclass(frozen=True)
class Note:
    """A paragraph; the important ones are not small."""

    kind: ClassVar[str] = "note"
    text: str
    important: bool = False


@dataclass(frozen=True)
class Listing:
    """A table that sorts by a click on its headings; ``groups`` are headings above with their widths."""

    kind: ClassVar[str] = "listing"
    heads: Sequence[Head | str]
    rows: Sequence[Sequence[Cell | str]]
    groups: Sequence[tuple[str, int]] = ()
    name: str = ""


@dataclass(frozen=True)
class Charts:
    """Charts side by side; None among them is left out."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart | None]
    title: str = ""
    note: str = ""
    closed: bool = False

    @property
    def kept(self) -> list[Chart]:
        """The charts that have something to show."""
        return [chart for chart in self.charts if chart is not None]

    @property
    def folded(self) -> bool:
        """Whether the reader has to open it."""
        return bool(self.title) and (self.closed or len(self.kept) > MANY)


@dataclass(frozen=True)
class Code:
    """Preformatted text, behind a summary where there is one."""

    kind: ClassVar[str] = "code"
    text: str
    summary: str = ""


Block: TypeAlias = Note | Listing | Charts | Code


@dataclass(frozen=True)
class Section:
    """Blocks below a heading; ``name`` is its anchor. Without any block it is left out."""

    name: str
    title: str
    blocks: Sequence[Block | None]

    @property
    def kept(self) -> list[Block]:
        """The blocks that have something to show."""
        return [b for b in self.blocks if b is not None and not (isinstance(b, Charts) and not b.kept)]


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    lead: Sequence[str] = (),
    facts: Sequence[str] = (),
    legend: Sequence[str] = (),
    gray: str | None = None,
) -> str:
    """A page as a string of HTML.

    Args:
        title: of the page.
        sections: from top to bottom. The legend stands before the first one with charts.
        lead: the most important sentences, on top.
        facts: short remarks below the title.
        legend: names of the series, in the order that ``series`` of the charts' traces counts.
        gray: the name that stands apart in gray, such as a baseline.
    """
    kept = [section for section in sections if section.kept]
    charted = [section for section in kept if any(isinstance(b, Charts) for b in section.kept)]
    slots = palette_slots(legend, gray)
    series = [
        {
            "name": name,
            "light": PALETTE[slot % len(PALETTE)][0],
            "dark": PALETTE[slot % len(PALETTE)][1],
            "dash": DASHES[slot // len(PALETTE) % len(DASHES)],
            "symbol": SYMBOLS[slot // len(PALETTE) % len(SYMBOLS)],
        }
        for name, slot in zip(legend, slots, strict=True)
    ]
    page: str = (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            lead=lead,
            facts=facts,
            sections=kept,
            legend_before=charted[0].name if charted and len(legend) > 1 else None,
            series=series,
            library=_library() if charted else "",
            version=__version__,
        )
    )
    return page


def palette_slots(legend: Sequence[str], gray: str | None) -> list[int]:
    """Each name's place in the palette; the gray at its end is kept for one name where there is one."""
    size = len(PALETTE)
    slots = (slot for slot in range(10**6) if gray is None or slot % size != size - 1)
    return [size - 1 if name == gray else next(slots) for name in legend]


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("mtlkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["data"] = _data
    return made


@functools.cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _data(value: Any) -> Any:
    """JSON for a script element, in which no text can end the script."""
    from markupsafe import Markup

    text = json.dumps(_compact(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _compact(value: Any) -> Any:
    """Five digits are more than a chart can show; null is a gap."""
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _compact(value.tolist())
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.5g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value
