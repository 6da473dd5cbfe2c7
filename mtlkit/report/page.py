"""A self-contained HTML page of text, tables and Plotly charts.

The templates are in ``templates/``. A page has one legend for all its charts; a name has the same color
everywhere, and a click hides it everywhere. The page embeds plotly.js, compressed: the part for charts
with two axes, 0.7 MB, which ``make`` puts into a clone or wheel, or else all of it, 2.0 MB.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mtlkit._version import __version__
from mtlkit.report.charts import Chart

# The hues of Okabe and Ito, which people with any color vision can tell apart, darkened or lightened to
# a contrast of at least 4.5 with the background; (light theme, dark theme).
PALETTE = (
    ("#0069a6", "#4aa8e0"),
    ("#b34a00", "#f07f35"),
    ("#00755a", "#21c294"),
    ("#a8437c", "#e29cc3"),
    ("#806000", "#e6b422"),
    ("#00748a", "#8fd0f5"),
    ("#6a4aa8", "#ab8ff0"),
    ("#5c6670", "#a9b4be"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
"""Distinguish series of the same color."""
MANY = 12
"""Larger groups of charts are collapsed at first."""
_PLOTLY = Path(__file__).parent / "static" / "plotly-cartesian.min.js"


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None  # to sort by; None is always last
    small: str = ""  # second line, in small letters
    mark: str = ""  # superscript after the text
    hint: str = ""  # tooltip
    best: bool = False  # bold
    series: int | None = None  # index in the legend, for the color
    code: bool = False  # in a monospaced font


@dataclass(frozen=True)
class Head:
    """A heading; the first click sorts ``high`` or ``low`` values to the top."""

    text: str
    better: str = "high"


@dataclass(frozen=True)
class Note:
    """A paragraph, in small letters unless important; with ``link``, a link to this address."""

    kind: ClassVar[str] = "note"
    text: str
    important: bool = False
    heading: bool = False
    link: str = ""


@dataclass(frozen=True)
class Status:
    """A method and its status: ``better``, ``worse``, ``level``, ``not decided``, ..."""

    label: str
    status: str
    text: str = ""
    series: int | None = None


@dataclass(frozen=True)
class StatusList:
    """A list of methods with their statuses."""

    kind: ClassVar[str] = "statuses"
    items: Sequence[Status]


@dataclass(frozen=True)
class Command:
    """A command to copy, with the reason to run it."""

    kind: ClassVar[str] = "command"
    text: str
    why: str = ""


@dataclass(frozen=True)
class Listing:
    """A table; ``groups`` are headings of several columns, with their numbers.

    If ``sortable``, a click on a heading sorts the rows.
    """

    kind: ClassVar[str] = "listing"
    heads: Sequence[Head | str]
    rows: Sequence[Sequence[Cell | str]]
    groups: Sequence[tuple[str, int]] = ()
    name: str = ""
    sortable: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side; None is skipped."""

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
        """Whether it is collapsed at first."""
        return bool(self.title) and (self.closed or len(self.kept) > MANY)


@dataclass(frozen=True)
class Code:
    """Preformatted text, collapsed if there is a summary."""

    kind: ClassVar[str] = "code"
    text: str
    summary: str = ""


Block: TypeAlias = Note | StatusList | Command | Listing | Charts | Code


@dataclass(frozen=True)
class Section:
    """Blocks below a heading with the anchor ``name``; shown unless it is empty."""

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
    lead: Sequence[str | Block] = (),
    facts: Sequence[str] = (),
    legend: Sequence[str] = (),
    gray: str | None = None,
) -> str:
    """Return a page as a string of HTML.

    >>> page = render_page("A page", [Section("one", "One", [Note("Some text.")])])
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        title: title of the page.
        sections: sections from top to bottom; the legend is above the first one with charts.
        lead: most important sentences or blocks, at the top.
        facts: short remarks below the title.
        legend: names of the series, indexed by ``series`` of traces and cells.
        gray: name of the gray series, such as a baseline.
    """
    kept = [section for section in sections if section.kept]
    charted = [section for section in kept if any(isinstance(b, Charts) for b in section.kept)]
    slots = palette_slots(legend, gray)
    page: str = _template().render(
        title=title,
        lead=[Note(each, important=True) if isinstance(each, str) else each for each in lead],
        facts=facts,
        sections=kept,
        legend_before=charted[0].name if charted and len(legend) > 1 else None,
        series=[_style(name, slot) for name, slot in zip(legend, slots, strict=True)],
        library=_library() if charted else "",
        version=__version__,
    )
    return page


def _style(name: str, slot: int) -> dict[str, str]:
    turn, color = divmod(slot, len(PALETTE))
    light, dark = PALETTE[color]
    dash, symbol = DASHES[turn % len(DASHES)], SYMBOLS[(color + turn) % len(SYMBOLS)]
    return {"name": name, "light": light, "dark": dark, "dash": dash, "symbol": symbol}


def palette_slots(legend: Sequence[str], gray: str | None) -> list[int]:
    """Return the palette index of each name; the last color, gray, is reserved for ``gray``."""
    size = len(PALETTE)
    slots = (slot for slot in range(10**6) if gray is None or slot % size != size - 1)
    return [size - 1 if name == gray else next(slots) for name in legend]


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("mtlkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["data"] = _data
    return made.get_template("page.html")


@functools.cache
def _library() -> str:
    if _PLOTLY.is_file():
        script = _PLOTLY.read_bytes()
    else:
        from plotly.offline import get_plotlyjs

        script = get_plotlyjs().encode()
    return base64.b64encode(gzip.compress(script, mtime=0)).decode()  # mtime: reproducible output


def _data(value: Any) -> Any:
    """Return JSON for a script element, escaped so that no text can end the script."""
    from markupsafe import Markup

    text = json.dumps(_compact(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _compact(value: Any) -> Any:
    """Round to five digits, more than a chart can show; NaN becomes null, a gap."""
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
