"""The description and the table of options on the pages of methods, networks and data sets."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import Any

import typer

_READABLE = 100
_NAMES = "sum prod langle rangle | le ge top nabla cdot dots in leftarrow"
_SYMBOLS = dict(zip(_NAMES.split(), "ΣΠ⟨⟩‖≤≥T∇·…∈←", strict=True))
_SYMBOLS |= dict.fromkeys(["quad", "qquad"], "  ") | dict.fromkeys([",", " ", ";"], " ")
_SYMBOLS |= dict.fromkeys(["!", "Big", "big", "left", "right"], "")
_SYMBOLS |= {name: name for name in ("log", "exp", "min", "max", "cos")}


def page_width() -> int:
    """Return the width of the terminal, at most 100; in a file or pipe, ``COLUMNS`` or 80."""
    from rich.console import Console

    return min(Console().width, _READABLE)


def print_description(docstring: str) -> None:
    """Print a docstring without markup and without its ``Args``, which the table of options shows."""
    text = re.sub(r"^Args:\n(?:[ \t]+.*\n?|\n)+", "", docstring, flags=re.MULTILINE)
    typer.echo(textwrap.indent(plain_docstring(text, page_width() - 2), "  "))


def print_options(options: Iterable[Any]) -> None:
    """Print name, default, description and accepted values of each option."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print("\noptions", style="bold", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=16)
    table.add_column(overflow="fold")
    for option in options:
        required = option.default_text == "(required)"
        default = option.default_text if required else f"= {option.default_text}"
        known = "" if option.accepted == "any value" else f" ({option.accepted})"
        table.add_row(option.name, default, plain_text(option.description) + known)
    console.print(table, markup=False)


def plain_docstring(text: str, width: int) -> str:
    """Wrap paragraphs of reStructuredText and remove markup; common LaTeX commands become symbols.

    >>> print(plain_docstring("Add ``w``:\\n\\n.. math:: g = w G", 40))
    Add w:
    <BLANKLINE>
        g = w G
    """
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(_block(block, width) for block in blocks if block.strip())


def _block(block: str, width: int) -> str:
    if ">>>" in block:
        return block
    display = re.match(r"\s*\.\. math::(.*)", block, re.DOTALL)
    if display:
        formula = _formula(" ".join(display.group(1).split()))
        return textwrap.fill(formula, width, initial_indent=" " * 4, subsequent_indent=" " * 8)
    pieces = re.split(r"\n(?=\s*[-*] )", block)  # items of a list stay apart
    return "\n".join(textwrap.fill(plain_text(piece), width) for piece in pieces)


def plain_text(text: str) -> str:
    """Return a paragraph of reStructuredText without markup, on one line.

    >>> plain_text("the :math:`G_k` of :class:`~mtlkit.Method`, ``sum``")
    'the G_k of Method, sum'
    """
    text = re.sub(r":math:`([^`]*)`", lambda found: _formula(found[1]), " ".join(text.split()))
    text = re.sub(r":\w+:`~(?:\w+\.)*(\w+)`", r"\1", text)
    text = re.sub(r":\w+:`([^`<]+?)(?: <[^>]*>)?`", r"\1", text)
    return re.sub(r"``([^`]*)``", r"\1", text)


def _formula(latex: str) -> str:
    """Replace common LaTeX commands by Unicode characters."""
    latex = re.sub(r"\\(?:text|math\w+|operatorname)\{([^{}]*)\}", r"\1", latex)
    return re.sub(r"\\([A-Za-z]+|.)", lambda found: _symbol(found[1], found[0]), latex)


def _symbol(name: str, command: str) -> str:
    size = "CAPITAL" if name[:1].isupper() else "SMALL"
    try:
        return _SYMBOLS.get(name) or unicodedata.lookup(f"GREEK {size} LETTER {name}")
    except KeyError:
        return command if name not in _SYMBOLS and name.isalpha() else ""
