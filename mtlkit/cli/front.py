"""``mtlkit front``: the Pareto front of one network trained with preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import progress_bar, warnings_as_notes
from mtlkit.cli.options import Plugins, RunFolder, numbers_by_task


@app.command(epilog="Example: mtlkit front runs/digits --points 21")
def front(
    run: RunFolder,
    points: Annotated[
        int | None,
        typer.Option("--points", "-n", help="Preferences; default: 11 for two tasks, else 10 per task."),
    ] = None,
    split: Annotated[
        Literal["test", "val"] | None,
        typer.Option(help="Samples to evaluate on; default: test, if there are any."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Main metrics that the hypervolume is relative to, such as seg=0.3,depth=0.7; default: "
            "the worst found."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for front.csv and front.html; default: the run's."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    plugin: Plugins = None,
) -> None:
    """Evaluate a network that was trained with --preference at many preferences between its tasks."""
    corner = {} if reference is None else numbers_by_task(reference, "--reference")
    from rich.console import Console
    from rich.table import Column, Table

    from mtlkit.experiments.front import front as evaluate
    from mtlkit.experiments.front import write_front

    with warnings_as_notes(), progress_bar("evaluating") as report:
        found = evaluate(run, points=points, split=split, reference=corner, device=device, report=report)
    column = Column("preference", no_wrap=True)
    table = Table(column, *(f"{t.name} {t.main_metric}" for t in found.tasks), "front")
    rows = zip(found.preferences, found.main_metrics, found.on_front, strict=True)
    for preference, metrics, on_front in rows:
        label = " ".join(f"{value:.2f}" for value in preference)
        table.add_row(label, *(f"{value:.4g}" for value in metrics), "yes" if on_front else "")
    table.caption = f"preference: {', '.join(t.name for t in found.tasks)}"
    Console().print(table)
    typer.echo(found.describe_volume())
    for path in write_front(found, output or run):
        typer.echo(f"wrote {path}")
