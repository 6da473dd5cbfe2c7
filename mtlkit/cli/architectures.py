"""``mtlkit architectures``: the list of networks, or the options of one."""

from __future__ import annotations

import inspect

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtlkit.cli import app
from mtlkit.cli.catalog import find_options
from mtlkit.cli.options import Plugins
from mtlkit.cli.pages import plain_text, print_description, print_options
from mtlkit.config.registry import architectures


@app.command("architectures")
def list_or_show(
    name: str = typer.Argument(None, help="Show the options of this architecture."),
    plugin: Plugins = None,
) -> None:
    """List the architectures, or show the options of one."""
    console = Console(soft_wrap=True)
    if name is not None:
        _show(console, name)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("year")
    table.add_column("description")
    for each in architectures.names():
        factory = architectures.get(each)
        summary = (inspect.getdoc(factory) or "").partition("\n")[0]
        table.add_row(each, str(getattr(factory, "year", None) or ""), Text(plain_text(summary)))
    console.print(table)
    console.print("\nOptions of an architecture: mtlkit architectures NAME")


def _show(console: Console, name: str) -> None:
    factory = architectures.get(name)
    console.print(Text(name, style="bold cyan"))
    paper = getattr(factory, "paper", "")
    if paper:
        console.print(Text(paper, style="dim"), soft_wrap=False)
    console.print()
    print_description(inspect.getdoc(factory) or "(no description)")
    print_options(find_options(factory))
