"""``mtlkit train``: train one network with one method."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import warnings_as_notes
from mtlkit.cli.options import ConfigFile, command_of, with_settings
from mtlkit.config.launching import is_first_process
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import SpecError
from mtlkit.training.config import TrainConfig


@app.command(cls=command_of(TrainConfig))
@with_settings(TrainConfig)
def train(
    config: ConfigFile = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="'auto': resume from the newest valid checkpoint; or the path of a checkpoint."
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--tuned", help="Folder of mtlkit tune: train its best method, or the one named by --method."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, show what would be done, and stop.")
    ] = False,
    **flags: Any,
) -> None:
    """Train one network with one method.

    Example: [bold]mtlkit train --data multidigits --method rotograd --epochs 5 -o runs/digits[/bold]

    On several GPUs: [bold]accelerate launch --multi_gpu -m mtlkit train --config run.yaml[/bold]
    """
    from mtlkit.training.accelerators import Interrupted

    settings: dict[str, Any] = {} if config is None else read_yaml(config)
    if tuned is not None:
        from mtlkit.experiments.tuning.winners import Winners

        settings |= Winners.load(tuned).training(flags.pop("method", None))
    if config is not None and resume == "auto" and "output" not in flags:
        settings = _follow_folder(config, settings)
    chosen = TrainConfig.make({**settings, **flags}, str(config) if config and not flags else "train")
    if chosen.folder.is_file():
        raise SpecError(f"the output {chosen.folder} is a file; give a folder, such as -o runs/first")
    from mtlkit.training.experiment import describe_plan, run

    if dry_run:
        with warnings_as_notes():
            typer.echo(describe_plan(chosen))
        return
    with warnings_as_notes():
        try:
            result = run(chosen, resume=resume)
        except Interrupted as stop:
            command = f"mtlkit train --config {chosen.folder / 'config.yaml'} --resume auto"
            if is_first_process():
                typer.echo(f"{stop}; resume with: {command}", err=True)
            raise typer.Exit(130) from None
        finally:
            _leave_processes()
    if is_first_process():
        _print_result(result)


def _follow_folder(config: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Resume a run in the folder of its configuration, even if the folder was moved."""
    folder, output = config.parent, settings.get("output")
    moved = output is not None and Path(output).absolute() != folder.absolute()
    if not moved or not (folder / "checkpoints").is_dir():
        return settings
    if is_first_process():
        typer.echo(f"note: resuming in {folder}, the folder of {config.name}, not in {output}", err=True)
    return {**settings, "output": str(folder)}


def _print_result(result: Any) -> None:
    which = "test set" if result.test is not None else "validation"
    fit = result.fit
    typer.echo(f"{fit.step} steps, {fit.epoch} epochs; {result.folder}")
    if fit.still_improving:
        typer.echo("the last validation was the best: train longer, with more --epochs or --steps")
    for task, row in result.metrics.items():
        values = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if math.isfinite(v))
        typer.echo(f"  {which}  {task}: {values}")
    typer.echo(f"plots: mtlkit report {result.folder}")


def _leave_processes() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
