"""``mtlkit predict``: predictions for new samples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import warnings_as_notes
from mtlkit.cli.options import BatchSize, Device, Plugins, RunFolder


@app.command(epilog="Example: mtlkit predict runs/people --input new.csv --output predicted.csv")
def predict(
    run: RunFolder,
    input: Annotated[
        Path, typer.Option("--input", "-i", help="New samples; a table needs no target columns.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table: .csv or .csv.gz.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the input to copy; may be repeated; all for all.", metavar="COLUMN"
        ),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = "cpu",
    plugin: Plugins = None,
) -> None:
    """Predict on new samples with the network of a run.

    Classes come with probabilities, numbers in the unit of the targets.
    """
    from rich.console import Console
    from rich.progress import Progress

    from mtlkit.deployment.predicting import predict as write

    begun = time.monotonic()
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with warnings_as_notes(), progress:
        bar = progress.add_task("predicting", total=None)
        number = write(
            run,
            input,
            output,
            keep=keep or (),
            batch_size=batch_size,
            device=device,
            report=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    typer.echo(f"wrote {output}: {number} rows in {time.monotonic() - begun:.1f} s")
