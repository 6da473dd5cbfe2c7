"""``mtlkit export``: the network of a run as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import warnings_as_notes
from mtlkit.cli.options import Plugins, RunFolder, numbers_by_task
from mtlkit.errors import SpecError


@app.command(epilog="Example: mtlkit export runs/digits --format onnx")
def export(
    run: RunFolder,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="pt2, onnx or safetensors; or by the name of --output."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; default: model.FORMAT in the folder."),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Samples at a time: dynamic, or a number that is fixed.")
    ] = "dynamic",
    preference: Annotated[
        str | None,
        typer.Option(
            help="For a network trained with --preference: how much each task counts, such as "
            "seg=2,depth=1; default: all alike.",
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write a trained network as one file, its rotations folded into the heads.

    The file is read back and compared with the network before it gets its name.
    """
    if batch != "dynamic" and not batch.isdecimal():
        raise SpecError(f"--batch is dynamic or a number of samples, not {batch!r}")
    chosen = None if preference is None else numbers_by_task(preference, "--preference")
    from mtlkit.deployment.exporting import export as write

    with warnings_as_notes():
        made = write(
            run,
            output,
            format=format,
            batch="dynamic" if batch == "dynamic" else int(batch),
            preference=chosen,
        )
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)
    size = made.path.stat().st_size / 1e6
    typer.echo(f"wrote {made.path} ({size:.2f} MB, batch {batch})")
    typer.echo(f"largest difference to the network: {made.difference:.1e} of the largest output")
