"""``mtlkit schema``: what a YAML file of settings may hold, for editors."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.config.settings import Settings
from mtlkit.errors import unknown_name


@app.command(epilog="Example: mtlkit schema compare > compare.schema.json")
def schema(
    command: Annotated[str, typer.Argument(help="train, compare or tune.")] = "train",
) -> None:
    """Print the JSON schema of a command's settings.

    An editor checks and completes a YAML file whose first line is
    [bold]# yaml-language-server: $schema=compare.schema.json[/bold]
    """
    typer.echo(json.dumps(json_schema(command), indent=2))


def json_schema(command: str) -> dict[str, Any]:
    """The JSON schema of the settings of ``mtlkit COMMAND``."""
    made = settings_of(command).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": f"mtlkit {command}",
        "description": f"Settings of `mtlkit {command}`.",
    }


def settings_of(command: str) -> type[Settings]:
    """The settings of a command."""
    if command == "tune":  # its search spaces are the methods', which import torch
        from mtlkit.experiments.tuning.config import TuneConfig

        return TuneConfig
    from mtlkit.experiments.compare_config import CompareConfig
    from mtlkit.training.config import TrainConfig

    known: dict[str, type[Settings]] = {"train": TrainConfig, "compare": CompareConfig}
    if command not in known:
        raise unknown_name("command with settings", command, (*known, "tune"))
    return known[command]
