"""``mtlkit methods``: the table of methods, or the page of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.options import Plugins
from mtlkit.cli.pages import print_description, print_options

_WIDE = 160
"""Terminal width from which the table has all its columns."""
_SHORT = {"weigh losses": "losses", "fork features": "fork", "merge gradients": "merge"}


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the page of this method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Plugins = None,
) -> None:
    """List all methods, or show the page of one: what it does, what it needs and its options."""
    from mtlkit.cli.catalog import all_facts, method_facts

    chosen = all_facts() if name is None else [method_facts(name)]
    if as_json:
        entries = [_entry(facts) for facts in chosen]
        typer.echo(json.dumps(entries if name is None else entries[0], indent=2, default=str))
    elif name is None:
        _print_table(chosen)
    else:
        _print_page(chosen[0])


def _entry(facts: Any) -> dict[str, Any]:
    from mtlkit.cli.catalog import REQUIRED

    entry = {key: value for key, value in asdict(facts).items() if key != "options"}
    entry["options"] = [
        {"name": option.name, "accepted": option.accepted, "description": option.description}
        | ({"required": True} if option.default is REQUIRED else {"default": option.default})
        for option in facts.options
    ]
    return entry


def _print_table(chosen: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from mtlkit.cli.catalog import OMITTED

    console = Console(markup=False, highlight=False)
    wide = console.width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("method", no_wrap=True, style="bold")
    for column in ("role", "year", *(("needs", "work per step") if wide else ())):
        table.add_column(column, no_wrap=True)
    table.add_column("what it does", ratio=1)
    for facts in chosen:
        role = ", ".join(_SHORT.get(role, role) for role in facts.roles)
        cells = [facts.name, role, str(facts.year or "")]
        cells += [", ".join(facts.needs), facts.cost] if wide else []
        table.add_row(*cells, f"= {facts.stands_for}" if facts.stands_for else facts.summary)
    console.print(table)
    console.print(
        f"\n{len(chosen)} methods; `mtlkit methods NAME` shows one. Join parts with '+', as in "
        f"'uw+pcgrad'. Not included, with the reason on their pages: {', '.join(OMITTED)}. "
        "`mtlkit speed` measures the time of a step on this machine."
    )


def _print_page(facts: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(facts.name, style="bold", highlight=False, markup=False)
    console.print()
    print_description(facts.docstring)
    console.print()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "role": ", ".join(facts.roles),
        "paper": facts.paper,
        "year": str(facts.year or ""),
        "link": facts.url,
        "needs": ", ".join(facts.needs),
        "distributed": facts.distributed,
        "work per step": facts.cost,
        "class": facts.factory,
    }
    for key, value in rows.items():
        if value:
            table.add_row(key, value)
    console.print(table, markup=False)
    if facts.options:
        print_options(facts.options)
