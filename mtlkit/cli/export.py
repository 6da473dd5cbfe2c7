"""``mtlkit export``: the network of a run as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
        typer.Option(
            "--format", "-f", help="pt2, onnx or safetensors; default: the suffix of --output."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file; default: model.FORMAT in the run's folder."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch size: dynamic, or a fixed number.")] = "dynamic",
    preference: Annotated[
        str | None,
        typer.Option(
            help="For a network trained with --preference: the weight of each task, such as "
            "seg=2,depth=1, or 'input' for an input of the exported network; default: equal weights."
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Export a trained network as one file, with rotations folded into the heads.

    The file is read back and compared with the network before it is given its name.
    """
    if batch != "dynamic" and not batch.isdecimal():
        raise SpecError(f"--batch must be dynamic or a number of samples, not {batch!r}")
    chosen: Any = preference
    if preference is not None and preference != "input":
        chosen = numbers_by_task(preference, "--preference")
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
    typer.echo(f"largest difference from the network: {made.difference:.1e} of the largest output")
