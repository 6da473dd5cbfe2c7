"""``mtlkit tune``: tune the settings of every method with the same number of trials."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import default_folder, resumable
from mtlkit.cli.options import ConfigFile, OutputFolder, command_of, with_settings
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import ConfigError
from mtlkit.experiments.entries import split_specs
from mtlkit.experiments.tuning.config import TuneConfig


@app.command(cls=command_of(TuneConfig))
@with_settings(TuneConfig)
def tune(
    config: ConfigFile = None,
    output: OutputFolder = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Search range: 'lr=log(1e-4, 1e-2)' or 'cagrad.c=uniform(0, 1)'; may be repeated.",
            rich_help_panel="Search",
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Tune the settings of every method, with the same number of trials, on validation data only.

    Example: [bold]mtlkit tune --data multidigits --methods sum,cagrad,rotograd --trials 20 -o
    runs/tune[/bold], then [bold]mtlkit compare --tuned runs/tune[/bold] or
    [bold]mtlkit train --tuned runs/tune[/bold]

    The same command resumes an interrupted search. Several processes can share the work.
    """
    settings: dict[str, Any] = {} if config is None else read_yaml(config)
    if space:
        own = settings.get("space")
        flags["space"] = {**(own if isinstance(own, dict) else {}), **dict(map(_search, space))}
    chosen = TuneConfig.make({**settings, **flags}, "tune" if config is None else str(config))
    name = chosen.data if config is None else config.stem
    _run(chosen, default_folder(f"tune-{name}") if output is None else output)


def _search(text: str) -> tuple[str, Any]:
    name, equals, values = text.partition("=")
    if not equals:
        raise ConfigError(f"--space {text!r}: expected NAME=VALUES, such as 'lr=log(1e-4, 1e-2)'")
    values = values.strip()
    if values.startswith("[") and values.endswith("]"):
        words = {"true": True, "false": False, "none": None}
        return name.strip(), [words.get(word.lower(), word) for word in split_specs(values[1:-1])]
    return name.strip(), values


def _run(chosen: TuneConfig, folder: Path) -> None:
    typer.echo(f"loading the data; output: {folder}", err=True)  # torch alone takes seconds
    from mtlkit.experiments.terminal import make_console, winners_table
    from mtlkit.experiments.tuning.page import PAGE
    from mtlkit.experiments.tuning.plan import CONFIG
    from mtlkit.experiments.tuning.study import tune as search

    with resumable("tune", "-c", str(folder / CONFIG), "-o", str(folder)):
        made = search(chosen, folder)
    make_console().print(winners_table(made.trials, made.spaces, made.winners.trials))
    typer.echo(
        "Improvement of validation metrics over one run of the plain sum with the given settings; "
        "the test set was not used."
    )
    for label, known in made.trials.items():
        errors = [trial.facts["error"] for trial in known if trial.state == "failed"]
        if errors:
            typer.echo(f"failed: {label}, {len(errors)} of {len(known)}: {errors[0]}", err=True)
    typer.echo(f"winners: {folder / 'winners.yaml'}; page: {folder / PAGE}")
    typer.echo(f"compare them on new seeds: mtlkit compare --tuned {shlex.quote(str(folder))}")
    typer.echo(f"train the best one: mtlkit train --tuned {shlex.quote(str(folder))}")
    if made.failed:
        typer.echo(f"all trials failed: {', '.join(made.failed)}", err=True)
        raise typer.Exit(1)
