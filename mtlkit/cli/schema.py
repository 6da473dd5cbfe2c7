"""``mtlkit schema``: the JSON schema of a YAML file of settings, for editors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.errors import unknown_name

if TYPE_CHECKING:
    from mtlkit.config.settings import Settings

_COMMANDS = ("train", "compare", "tune")


@app.command(epilog="Example: mtlkit schema compare > compare.schema.json")
def schema(
    command: Annotated[str, typer.Argument(help="train, compare or tune; or method.")] = "train",
) -> None:
    """Print the JSON schema of a command's settings, or of a method with its options.

    Editors check and complete a YAML file whose first line is
    [bold]# yaml-language-server: $schema=compare.schema.json[/bold]
    """
    typer.echo(json.dumps(json_schema(command), indent=2))


def json_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the settings of ``mtlkit COMMAND``, or of a ``method``."""
    if command == "method":
        return {"$schema": _DRAFT, **method_schema()}
    made = settings_of(command).json_schema()
    return {
        "$schema": _DRAFT,
        **made,
        "title": f"mtlkit {command}",
        "description": f"Settings of `mtlkit {command}`.",
    }


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def method_schema() -> dict[str, Any]:
    """Return the JSON schema of a method: a config string, or a mapping of name and options.

    >>> [cagrad] = [s for s in method_schema()["anyOf"] if s.get("title") == "cagrad"]
    >>> cagrad["properties"]["wrt"]["enum"]
    ['features', 'parameters']
    """
    from mtlkit.cli.catalog import all_facts
    from mtlkit.config.annotations import json_schema as schema_of

    choices: list[dict[str, Any]] = [{"type": "string"}]
    for facts in all_facts():
        options = {
            option.name: {**schema_of(option.annotation), "description": option.description}
            for option in facts.options
        }
        choices.append(
            {
                "type": "object",
                "title": facts.name,
                "description": facts.summary,
                "properties": {"name": {"const": facts.name}, **options},
                "required": ["name"],
                "additionalProperties": False,
            }
        )
    return {"title": "method", "anyOf": choices}


def settings_of(command: str) -> type[Settings]:
    """Return the settings class of a command."""
    if command not in _COMMANDS:
        raise unknown_name("schema", command, [*_COMMANDS, "method"])
    if command == "tune":  # needs the methods, and so torch
        from mtlkit.experiments.tuning.config import TuneConfig

        return TuneConfig
    from mtlkit.experiments.compare_config import CompareConfig
    from mtlkit.training.config import TrainConfig

    return TrainConfig if command == "train" else CompareConfig
