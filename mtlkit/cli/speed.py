"""``mtlkit speed``: the time of a step with each method on this machine."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.options import Plugins

_BATCH, _INPUTS, _WIDTH = 64, 256, 512


@app.command()
def speed(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Names or config strings; default: all methods.")
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", "-k", min=1, help="Number of tasks K.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps per method.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Plugins = None,
) -> None:
    """Measure the time of a training step with each method, relative to a plain step, on one thread.

    Example: [bold]mtlkit speed pcgrad rotograd 'cagrad(c=0.4)' -k 3[/bold]

    The network is an MLP with three layers of 512 and one linear head per task; the batch size is 64.
    Steps with the method alternate with steps of the plain sum; the ratios are medians. On a larger
    network the same merge is a smaller fraction of the step.
    """
    import torch
    from rich.console import Console
    from rich.progress import track

    from mtlkit.config.registry import methods as registry

    chosen = methods or registry.names()
    for spec in chosen:
        registry.expand(spec)  # raises for a wrong name before anything is measured
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that more cores do not hide the cost
    shown = track(chosen, "measuring", console=Console(stderr=True), transient=True)
    try:
        ratios = {spec: round(_measure(spec, tasks, repeats), 3) for spec in shown}
    finally:
        torch.set_num_threads(threads)
    if as_json:
        typer.echo(json.dumps({"tasks": tasks, "ratios": ratios}, indent=2))
        return
    width = max(map(len, ratios))
    for spec, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        typer.echo(f"{spec:<{width}}  {ratio:.2f} x")
    typer.echo(f"\nx: times a plain step of this small network with K = {tasks} tasks")


def _measure(spec: str, tasks: int, repeats: int) -> float:
    """Return the median ratio of paired steps, with the method and plain."""
    steps = [_stepper(each, tasks) for each in (spec, None)]
    for step in steps:
        step()
    pairs = [[step() for step in steps] for _ in range(repeats)]
    return statistics.median(own / plain for own, plain in pairs)


def _stepper(spec: str | None, tasks: int) -> Callable[[], float]:
    """Return a function that takes steps and returns the seconds of one; plain steps for None."""
    import torch
    from torch import nn

    from mtlkit.method.create import create_method

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (_INPUTS, _WIDTH, _WIDTH):
        layers += [nn.Linear(inputs, _WIDTH), nn.ReLU()]
    backbone, batch = nn.Sequential(*layers), torch.randn(_BATCH, _INPUTS)
    heads = nn.ModuleList(nn.Linear(_WIDTH, 1) for _ in range(tasks))
    method = None if spec is None else create_method(spec, tasks, feature_dim=_WIDTH)
    modules = [backbone, heads] + ([] if method is None else [method])
    optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=1e-4)
    period = 1 if method is None else method.cost_period

    def step() -> float:
        start = time.perf_counter()
        for _ in range(period):
            features = backbone(batch)
            views = [features] * tasks if method is None else method(features)
            losses = [head(view).square().mean() + 1 for head, view in zip(heads, views, strict=True)]
            total: Any = sum(losses) if method is None else method.total(losses)
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        return (time.perf_counter() - start) / period

    return step
