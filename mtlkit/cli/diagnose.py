"""``mtlkit diagnose``: what the tasks' gradients do to each other, and what to try."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from mtlkit.cli import app

__all__ = ["diagnose"]


@app.command(epilog="Example: mtlkit diagnose --data multidigits -o runs/diagnosis")
def diagnose(
    data: Annotated[str, typer.Option(help="Data set: see 'mtlkit data'.", show_default=False)],
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets' files.")] = None,
    architecture: Annotated[
        str | None, typer.Option(help="Network: see 'mtlkit architectures'; default the data set's.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to take.")] = 200,
    wrt: Annotated[
        str | None,
        typer.Option(help="Gradients of 'features' or 'parameters'; default what the network allows."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 64,
    optimizer: Annotated[str, typer.Option(help="adam, adamw, radam, sgd(momentum=0.9).")] = "adam",
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and augmentation.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for diagnosis.html and diagnosis.txt.")
    ] = Path("runs/diagnosis"),
) -> None:
    """Take some plain steps and say what the tasks' gradients do to each other, and what to try."""
    from mtlkit.training.config import TrainConfig

    settings = {
        "data": data,
        "data_dir": data_dir,
        "architecture": architecture,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "seed": seed,
        "output": str(output),
    }
    config = TrainConfig.make({k: v for k, v in settings.items() if v is not None}, "diagnose")
    import mtlkit
    from mtlkit.files import write_text
    from mtlkit.training.experiment import build_trainer

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.echo(f"note: {message}", err=True)
        trainer, loaders = build_trainer(config)
        found = mtlkit.diagnose(
            trainer.model,
            trainer.tasks,
            loaders["train"],
            steps,
            wrt=wrt,
            optimizer=config.optimizer,
            lr=config.lr,
            seed=config.seed,
        )
    typer.echo(str(found))
    write_text(output / "diagnosis.txt", f"{found}\n")
    typer.echo(f"\nwrote {found.to_html(output / 'diagnosis.html')}")
