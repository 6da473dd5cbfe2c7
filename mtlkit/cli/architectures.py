"""``mtlkit architectures``: what networks there are, and the options of each."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtlkit.cli import app
from mtlkit.cli.catalog import find_options
from mtlkit.cli.options import Plugins
from mtlkit.cli.pages import print_description, print_options
from mtlkit.config.registry import architectures


@app.command("architectures")
def list_or_show(
    name: str = typer.Argument(None, help="Show the options of this architecture."),
    plugin: Plugins = None,
) -> None:
    """List the architectures, or show the options of one."""
    console = Console(soft_wrap=True)
    if name is None:
        _list(console)
    else:
        _show(console, name)


def _list(console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("year")
    table.add_column("what it is")
    for name in architectures.names():
        factory = _factory(name)
        table.add_row(name, str(getattr(factory, "year", None) or ""), Text(_summary(factory)))
    console.print(table)
    console.print("\nOptions of one: mtlkit architectures NAME")


def _show(console: Console, name: str) -> None:
    factory = _factory(name)
    console.print(Text(name, style="bold cyan"))
    paper = getattr(factory, "paper", "")
    if paper:
        console.print(Text(paper, style="dim"), soft_wrap=False)
    console.print()
    print_description(inspect.getdoc(factory) or "(no description)")
    print_options(find_options(factory))


def _factory(name: str) -> Any:
    """The class behind a name; of an alias, that which it stands for."""
    aliases = architectures.aliases()
    if name in aliases:
        (part,) = architectures.expand(name)
        name = part.name
    return architectures.get(name)


def _summary(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").partition("\n")[0]
