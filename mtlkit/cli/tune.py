"""``mtlkit tune``: search settings for every method with the same number of trials."""

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
            help="What is searched: 'lr=log(1e-4, 1e-2)', 'cagrad.c=uniform(0, 1)'; repeat it for more.",
            rich_help_panel="Search",
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Search settings for every method: the same number of trials each, judged on validation only.

    Example: [bold]mtlkit tune --data multidigits --methods sum,cagrad,rotograd --trials 20 -o
    runs/tune[/bold], then [bold]mtlkit compare --tuned runs/tune[/bold] or
    [bold]mtlkit train --tuned runs/tune[/bold]

    The same command resumes a search that was stopped or killed. Several at once share the work.
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
        raise ConfigError(
            f"--space {text!r}: write a name, '=' and values, such as 'lr=log(1e-4, 1e-2)'"
        )
    values = values.strip()
    if values.startswith("[") and values.endswith("]"):
        return name.strip(), [_value(word) for word in split_specs(values[1:-1])]
    return name.strip(), values


def _value(word: str) -> Any:
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)


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
        "Improvement of validation metrics over a plain run of the sum with the given settings; "
        "nothing was tested."
    )
    for label, known in made.trials.items():
        errors = [trial.facts["error"] for trial in known if trial.state == "failed"]
        if errors:
            typer.echo(f"failed: {label}, {len(errors)} of {len(known)}: {errors[0]}", err=True)
    typer.echo(f"winners: {folder / 'winners.yaml'}; page: {folder / PAGE}")
    typer.echo(f"compare them on new seeds: mtlkit compare --tuned {shlex.quote(str(folder))}")
    typer.echo(f"train the best one: mtlkit train --tuned {shlex.quote(str(folder))}")
    if made.failed:
        typer.echo(f"no trial ended well: {', '.join(made.failed)}", err=True)
        raise typer.Exit(1)
