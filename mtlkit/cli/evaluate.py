"""``mtlkit evaluate``: metrics of a run's network on a labeled file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlkit.cli import app
from mtlkit.cli.options import BatchSize, Device, Plugins, RunFolder
from mtlkit.errors import SpecError


@app.command(epilog="Example: mtlkit evaluate runs/people --input labeled.csv")
def evaluate(
    run: RunFolder,
    input: Annotated[
        Path, typer.Option("--input", "-i", help="Labeled samples: inputs and target columns.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the metrics as .csv.")
    ] = None,
    batch_size: BatchSize = None,
    device: Device = "cpu",
    plugin: Plugins = None,
) -> None:
    """Evaluate the network of a run on a labeled file: every metric of every task.

    rmse is in the unit of the file; mse and mae are in standard deviations if the run standardized its
    targets.
    """
    if output is not None and output.suffix != ".csv":
        raise SpecError(f"metrics are written as .csv, not {output.name!r}")
    from rich.console import Console
    from rich.table import Table

    from mtlkit.config.files import write_text
    from mtlkit.deployment.loading import load

    scores = load(run, device).evaluate(input, batch_size)
    table = Table("task", "metric", "value")
    rows = [(task, metric, value) for task, found in scores.items() for metric, value in found.items()]
    for task, metric, value in rows:
        table.add_row(task, metric, f"{value:.0f}" if metric == "labels" else f"{value:.4g}")
    Console().print(table)
    if output is not None:
        import pandas

        frame = pandas.DataFrame(rows, columns=["task", "metric", "value"])
        write_text(output, frame.to_csv(index=False))
        typer.echo(f"wrote {output}")
