"""``mtlkit train``: train one network with one method."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app

__all__ = ["train"]

_NETWORK = "Network and method"
_LENGTH = "Length and optimizer"
_SAFETY = "Checkpoints, validation and log"


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file; flags override its keys.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set: see 'mtlkit data'.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets' files.")] = None,
    architecture: Annotated[
        str | None,
        typer.Option(help="Network: see 'mtlkit architectures'.", rich_help_panel=_NETWORK),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method: see 'mtlkit methods'.", rich_help_panel=_NETWORK)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; default 10.", rich_help_panel=_LENGTH)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.", rich_help_panel=_LENGTH)] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Samples per batch, over all processes.", rich_help_panel=_LENGTH),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="adam, adamw, radam, sgd(momentum=0.9).", rich_help_panel=_LENGTH),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_LENGTH)] = None,
    method_lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the method's parameters.", rich_help_panel=_LENGTH),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of the network.", rich_help_panel=_LENGTH)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, cosine, step(epochs=9).", rich_help_panel=_LENGTH)
    ] = None,
    rotation_decay: Annotated[
        float | None,
        typer.Option(help="Factor of the rotations' rate per step.", rich_help_panel=_LENGTH),
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Batches per step.", rich_help_panel=_LENGTH)
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Largest gradient norm.", rich_help_panel=_LENGTH)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="no, bf16 or fp16.", rich_help_panel=_LENGTH)
    ] = None,
    on_nonfinite: Annotated[
        str | None,
        typer.Option(help="raise or skip a step that is not finite.", rich_help_panel=_LENGTH),
    ] = None,
    validate_every: Annotated[
        int | None,
        typer.Option(help="Steps between validations; default an epoch.", rich_help_panel=_SAFETY),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints.", rich_help_panel=_SAFETY)
    ] = None,
    keep_checkpoints: Annotated[
        int | None, typer.Option(help="Checkpoints to keep.", rich_help_panel=_SAFETY)
    ] = None,
    best_by: Annotated[
        str | None, typer.Option(help="improvement, loss, or task/metric.", rich_help_panel=_SAFETY)
    ] = None,
    early_stop: Annotated[
        int | None,
        typer.Option(help="Validations without progress to stop at.", rich_help_panel=_SAFETY),
    ] = None,
    log_every: Annotated[
        int | None, typer.Option(help="Steps between log lines.", rich_help_panel=_SAFETY)
    ] = None,
    monitor_every: Annotated[
        int | None,
        typer.Option(help="Steps between samples of the gradients; 0: none.", rich_help_panel=_SAFETY),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that read data.")] = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option("--tensorboard/--no-tensorboard", help="Write for TensorBoard too."),
    ] = None,
    test: Annotated[
        bool | None, typer.Option("--test/--no-test", help="Report on the test set at the end.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder of the run.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="'auto': go on from the newest good checkpoint; or a checkpoint's path."),
    ] = None,
) -> None:
    """Train one network with one method.

    Example: [bold]mtlkit train --data multidigits --method rotograd --epochs 5 -o runs/digits[/bold]

    On several GPUs: [bold]accelerate launch --multi_gpu -m mtlkit train --config run.yaml[/bold]
    """
    flags = {k: v for k, v in locals().items() if v is not None and k not in ("config", "resume")}
    from mtlkit.training.config import TrainConfig, read_yaml
    from mtlkit.training.interrupts import Interrupted

    settings: dict[str, Any] = {} if config is None else read_yaml(config)
    chosen = TrainConfig.make({**settings, **flags}, str(config) if config and not flags else "train")
    from mtlkit.training.experiment import run

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.echo(f"note: {message}", err=True)
        try:
            result = run(chosen, resume=resume)
        except Interrupted as stop:
            command = f"mtlkit train --config {chosen.folder / 'config.yaml'} --resume auto"
            if _is_first_process():
                typer.echo(f"{stop}; go on with: {command}", err=True)
            raise typer.Exit(130) from None
        finally:
            _leave_processes()
    if _is_first_process():
        _print_result(result)


def _print_result(result: Any) -> None:
    figures = result.test if result.test is not None else result.fit.validation
    which = "test set" if result.test is not None else "validation"
    typer.echo(f"{result.fit.step} steps, {result.fit.epoch} epochs; {result.folder}")
    for task, row in figures.items():
        values = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if math.isfinite(v))
        typer.echo(f"  {which}  {task}: {values}")
    typer.echo(f"plots: mtlkit report {result.folder}")


def _is_first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _leave_processes() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
