"""``mtlkit speed``: what a step with each method costs on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mtlkit.cli import app
from mtlkit.cli.options import Plugins


@app.command()
def speed(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Names or config strings; without any, all methods of mtlkit."),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", "-k", min=1, help="Number of tasks K.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps per method.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Plugins = None,
) -> None:
    """Measure what a training step adds with each method, in milliseconds on one thread.

    Example: [bold]mtlkit speed pcgrad rotograd 'cagrad(c=0.4)' -k 3[/bold]

    A step is the fork of (20, 512) features, one product per task, the total, the backward, and the
    optimizer's step of the method's own parameters. It takes turns with a plain one; the figures are
    medians.
    """
    import torch
    from rich.console import Console
    from rich.progress import track

    from mtlkit.cli.costs import built_in_methods, measure_cost
    from mtlkit.config.registry import methods as registry

    chosen = methods or built_in_methods()
    for spec in chosen:
        registry.expand(spec)  # a wrong name is refused before anything is measured
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread, so that more cores do not hide the cost
    shown = track(chosen, "measuring", console=Console(stderr=True), transient=True)
    try:
        costs = {spec: round(measure_cost(spec, tasks, repeats), 3) for spec in shown}
    finally:
        torch.set_num_threads(threads)
    if as_json:
        typer.echo(json.dumps({"tasks": tasks, "milliseconds": costs}, indent=2))
        return
    width = max(map(len, costs))
    for spec, added in sorted(costs.items(), key=lambda item: item[1]):
        typer.echo(f"{spec:<{width}}  +{added:.2f} ms")
    typer.echo(f"\nadded to a plain step of K = {tasks} tasks; on a whole network the share is smaller")
