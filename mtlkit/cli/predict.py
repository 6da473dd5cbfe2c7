"""``mtlkit predict``: predictions for new samples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import progress_bar, warnings_as_notes
from mtlkit.cli.options import BatchSize, Device, Plugins, RunFolder


@app.command(epilog="Example: mtlkit predict runs/people --input new.csv --output predicted.csv")
def predict(
    run: RunFolder,
    input: Annotated[
        Path, typer.Option("--input", "-i", help="New samples; a table needs no target columns.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write: .csv or .csv.gz.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Input column to copy, may be repeated; 'all' for all.", metavar="COLUMN"),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = "cpu",
    plugin: Plugins = None,
) -> None:
    """Predict on new samples with the network of a run.

    Classes have probabilities; numbers are in the unit of the targets.
    """
    from mtlkit.deployment.predicting import predict as write

    begun = time.monotonic()
    settings: Any = {"keep": keep or (), "batch_size": batch_size, "device": device}
    with warnings_as_notes(), progress_bar("predicting") as report:
        number = write(run, input, output, report=report, **settings)
    typer.echo(f"wrote {output}: {number} rows in {time.monotonic() - begun:.1f} s")
