"""``mtlkit compare``: methods times seeds on one data set, with statistics and a report."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app

__all__ = ["compare"]

_WHAT = "What is compared"
_TRAINING = "Training"
_WHERE = "Where it runs"


@app.command()
def compare(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file; flags override its keys.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Two minutes on embedded data.")] = False,
    budget: Annotated[
        str, typer.Option(help="full, or small: what the file says for a small machine.")
    ] = "full",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; one that is half done is completed.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set: see 'mtlkit data'.", rich_help_panel=_WHAT)
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with the data sets' files.", rich_help_panel=_WHAT)
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas.", rich_help_panel=_WHAT),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(help="Network: see 'mtlkit architectures'.", rich_help_panel=_WHAT),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs per method; default 3.", rich_help_panel=_WHAT)
    ] = None,
    single_task: Annotated[
        bool | None,
        typer.Option(
            "--single-task/--no-single-task",
            help="Train one network per task too, as the baseline.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="What the t-test compares with; default sum.", rich_help_panel=_WHAT),
    ] = None,
    reference_with_rotations: Annotated[
        bool | None,
        typer.Option(
            "--reference-with-rotations",
            help="Add the plain sum with R_k as ordinary task parameters.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Divide each loss by its first values, as the RotoGrad paper does.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; default 10.", rich_help_panel=_TRAINING)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps.", rich_help_panel=_TRAINING)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per step.", rich_help_panel=_TRAINING)
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="adam, adamw, radam, sgd(momentum=0.9).", rich_help_panel=_TRAINING),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_TRAINING)] = None,
    method_lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the method's parameters.", rich_help_panel=_TRAINING),
    ] = None,
    timing: Annotated[
        int | None,
        typer.Option(help="Timed steps per method; 0: none.", rich_help_panel=_TRAINING),
    ] = None,
    keep_weights: Annotated[
        bool | None,
        typer.Option(
            "--keep-weights", help="Keep the best weights of every run.", rich_help_panel=_TRAINING
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", help="Runs at a time; default one per GPU or core.", rich_help_panel=_WHERE
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=_WHERE)
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(help="local, or submitit for Slurm.", rich_help_panel=_WHERE)
    ] = None,
) -> None:
    """Compare methods: every method with every seed, single-task baselines, statistics, a report.

    Example: [bold]mtlkit compare --data multidigits --methods sum,pcgrad,rotograd -o runs/mine[/bold]

    The same command goes on where it was stopped or killed.
    """
    apart = ("config", "demo", "budget", "output")
    flags = {k: v for k, v in locals().items() if v is not None and k not in (*apart, "apart")}
    from mtlkit.errors import ConfigError
    from mtlkit.evaluation.compare_config import DEMO, CompareConfig
    from mtlkit.training.config import read_yaml

    if demo and config is not None:
        raise ConfigError("--demo and --config exclude each other: each says what to compare")
    settings: dict[str, Any] = dict(DEMO) if demo else {} if config is None else read_yaml(config)
    source = "the demo" if demo else "compare" if config is None else str(config)
    if budget == "small" and isinstance(settings.get("small"), dict):
        # flags override both the file and what it says for a small budget
        settings["small"] = {k: v for k, v in settings["small"].items() if k not in flags}
    chosen = CompareConfig.make({**settings, **flags}, source, budget)
    folder = output if output is not None else _default_folder(config, demo, chosen)
    _run(chosen, folder)


def _run(chosen: Any, folder: Path) -> None:
    from mtlkit.evaluation.compare import CONFIG, Stopped
    from mtlkit.evaluation.compare import compare as run_comparison
    from mtlkit.evaluation.live_table import print_table
    from mtlkit.evaluation.tables import build_table

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.echo(f"note: {message}", err=True)
        try:
            comparison = run_comparison(chosen, folder)
        except Stopped as stop:
            again = shlex.join(["mtlkit", "compare", "-c", str(folder / CONFIG), "-o", str(folder)])
            typer.echo(f"{stop}; go on with: {again}", err=True)
            raise typer.Exit(130) from None
    typer.echo(comparison.title)
    print_table(build_table(comparison))
    _print_legend(comparison)
    failed = [run for run in comparison.runs if run.status == "failed"]
    for run in failed:
        typer.echo(f"failed: {run.label}, seed {run.seed}: {run.error}", err=True)
    if failed:
        typer.echo(f"tracebacks: error.log in the runs' folders below {folder / 'runs'}", err=True)
    typer.echo(f"tables: {folder / 'table.md'}, table.tex, table.csv; runs: {folder / 'results.jsonl'}")
    typer.echo(f"report: {folder / 'report.html'}")
    if failed:
        raise typer.Exit(1)


def _print_legend(comparison: Any) -> None:
    seeds = len({run.seed for run in comparison.runs})
    text = f"Median ± standard deviation over {seeds} seed{'' if seeds == 1 else 's'}."
    if comparison.reference:
        text += f" † better than {comparison.reference}: one-sided paired t-test, 0.05."
    if comparison.baseline:
        over = comparison.config.get("improvement_over")
        which = f" of {', '.join(over)}" if over else ""
        text += f" Δ: improvement{which} over {comparison.baseline} networks, in percent."
    typer.echo(text)


def _default_folder(config: Path | None, demo: bool, chosen: Any) -> Path:
    if demo:
        return Path("runs/demo")
    if config is not None:
        return Path("runs") / config.stem
    import re

    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", chosen.train["data"])[:60].strip("_")
    return Path("runs") / f"compare-{name}"
