"""``mtlkit diagnose``: how the tasks' gradients interact, and what to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import warnings_as_notes
from mtlkit.cli.options import with_settings
from mtlkit.config.yaml_files import read_yaml
from mtlkit.training.config import TrainConfig

_SETTINGS = (
    *("data", "data_dir", "architecture", "batch_size", "optimizer"),
    *("lr", "workers", "seed", "plugins"),
)


@app.command(epilog="Example: mtlkit diagnose --data multidigits -o runs/diagnosis")
@with_settings(TrainConfig, only=_SETTINGS)
def diagnose(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML file of 'mtlkit train'; flags override its keys."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to take.")] = 200,
    wrt: Annotated[
        Literal["features", "parameters"] | None,
        typer.Option(
            help="Where to measure gradients; by default, at the features if the network allows."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for diagnosis.html and diagnosis.txt.")
    ] = Path("runs/diagnosis"),
    **flags: Any,
) -> None:
    """Train a copy for some steps; report how task gradients interact, and what to try."""
    settings: dict[str, Any] = {} if config is None else read_yaml(config)
    # always the plain sum, because the diagnosis is about the tasks; nothing is scheduled or tested
    own = {"method": "sum", "rotation_decay": None, "schedule": "constant", "test_last": None}
    chosen = TrainConfig.make({**settings, **flags, **own, "output": str(output)}, "diagnose")
    from dataclasses import replace

    import mtlkit
    from mtlkit.config.files import write_text
    from mtlkit.training.experiment import build_trainer

    with warnings_as_notes():
        trainer, loaders = build_trainer(chosen)
        found = mtlkit.diagnose(
            trainer.model,
            trainer.tasks,
            loaders["train"],
            steps,
            wrt=wrt,
            optimizer=chosen.optimizer,
            lr=chosen.lr,
            seed=chosen.seed,
        )
    model = f"model: {chosen.architecture or 'the default of the data set'}"
    found = replace(found, setup=(f"data: {chosen.data}", model, *found.setup[1:]))
    typer.echo(str(found))
    write_text(output / "diagnosis.txt", f"{found}\n")
    typer.echo(f"\nwrote {found.to_html(output / 'diagnosis.html')}")
