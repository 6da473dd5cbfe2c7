"""What the pages of methods, networks and data sets share: a description and a table of options."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

import typer

from mtlkit.cli.formulas import plain_docstring, plain_text

_READABLE = 100


def page_width() -> int:
    """That of the terminal, or 80 columns in a file or pipe unless ``COLUMNS`` says otherwise."""
    from rich.console import Console

    return min(Console().width, _READABLE)


def print_description(docstring: str) -> None:
    """A docstring without markup and without its arguments, which the table of options explains."""
    text = re.sub(r"^Args:\n(?:[ \t]+.*\n?|\n)+", "", docstring, flags=re.MULTILINE)
    typer.echo(textwrap.indent(plain_docstring(text, page_width() - 2), "  "))


def print_options(options: Iterable[Any]) -> None:
    """Name, default and meaning of each."""
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
        table.add_row(option.name, default, plain_text(option.description))
    console.print(table, markup=False)
