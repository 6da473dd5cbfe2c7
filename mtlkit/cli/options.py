"""Command-line options, generated from the fields of settings or shared by several commands."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from typer import rich_utils
from typer.core import TyperCommand

from mtlkit.cli import Command
from mtlkit.config.settings import Settings, choices, display
from mtlkit.errors import SpecError


def _load(plugins: list[str] | None) -> list[str]:
    from mtlkit.config.plugins import load_plugin

    for plugin in plugins or ():
        load_plugin(plugin)
    return plugins or []


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="Your Python file or module that registers methods, networks or data; may be repeated.",
        callback=_load,
        metavar="<str>",
    ),
]
"""The option ``--plugin`` of commands without settings."""

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; flags override its keys.")
]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", file_okay=False, help="Output folder; unfinished runs are resumed."),
]
RunFolder = Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples per pass; the default depends on the input.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]


def numbers_by_task(text: str, option: str) -> dict[str, float]:
    """Read ``seg=2,depth=1``.

    >>> numbers_by_task("seg=2, depth=1", "--preference")
    {'seg': 2.0, 'depth': 1.0}
    """
    try:
        pairs = [item.rsplit("=", 1) for item in text.split(",")]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise SpecError(
            f"{option} must be a number per task, such as seg=2,depth=1, not {text!r}"
        ) from None


def command_of(model: type[Settings]) -> type[TyperCommand]:
    """Return a command class whose error for an unknown option suggests the setting it stands for.

    Its help shows ``--no-x`` only if x is on by default, in the same column, so that no name is cut.
    """

    class SettingsCommand(Command):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            rich_utils.STYLE_OPTIONS_TABLE_PADDING = (0, 1, 0, 0)  # type: ignore[assignment]
            for param in self.params:
                field = model.model_fields.get(str(param.name))
                if field is not None and field.default:
                    param.opts = [*param.opts, *param.secondary_opts]
                param.secondary_opts = []
            super().format_help(ctx, formatter)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:  # of click, or of typer's copy of it
                given = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
                meant = model.synonyms.get(given)
                if meant in model.model_fields and hasattr(error, "possibilities"):
                    error.possibilities = [f"--{meant.replace('_', '-')}"]
                raise

    return SettingsCommand


def with_settings(
    model: type[Settings], only: Sequence[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``**settings`` of a command by an option for each setting of ``model``, or ``only`` some.

    The command receives those that the user gives. Settings that are mappings have no option.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        fields = model.model_fields
        made = [_option(name, fields[name]) for name in (fields if only is None else only)]
        options = [option for option in made if option is not None]
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]

        @functools.wraps(command)
        def called(**values: Any) -> Any:
            absent = [option.name for option in options if values[option.name] in (None, [])]
            return command(**{key: value for key, value in values.items() if key not in absent})

        # typer reads both
        parameters = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *options]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def _option(name: str, field: FieldInfo) -> inspect.Parameter | None:
    kind = display(field).cli or _kind(field.annotation)
    if kind is None:
        return None
    dashed = name.replace("_", "-")
    names = display(field).flags or (f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}",)
    info = typer.Option(
        *names,
        help=escape((field.description or "").replace("`", "") + _default(field)),
        rich_help_panel="Options" if name in _BASIC else f"Advanced: {display(field).panel.lower()}",
        show_default=False,
        metavar=None if kind is bool else _metavar(display(field).cli or field.annotation),
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


_BASIC = frozenset(
    {"data", "method", "methods", "architecture", "epochs", "steps", "batch_size", "lr", "seed", "seeds"}
    | {"output", "jobs", "minutes", "trials", "tuned"}
)
"""Settings that most people change; the help lists them first."""


def _kind(annotation: Any) -> Any:
    """Return the type of an option on the command line; None for a setting without an option."""
    for kind in choices(annotation):
        if kind is bool:
            return bool
        if kind in (int, float, str) or typing.get_origin(kind) is typing.Literal:
            return str  # the settings parse numbers and report errors
        if typing.get_origin(kind) in (list, tuple):
            return list[str]
    return None


def _default(field: FieldInfo) -> str:
    """Format the default for the help; that of the option is None, to tell what the user gave."""
    value = field.default
    if field.is_required() or value is False or value in (None, "", [], {}):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f" [default: {'yes' if value is True else shown}]"


def _metavar(annotation: Any) -> str | None:
    """Return the placeholder for the value of an option; None for typer's own."""
    kinds = list(choices(annotation))
    if any(typing.get_origin(kind) in (list, tuple) for kind in kinds):
        return "<str>,..."
    literal = any(typing.get_origin(kind) is typing.Literal for kind in kinds)
    if not literal and (kinds[0] not in (int, float, str) or len(kinds) > 1):
        return None
    if kinds[0] in (int, float):  # the description lists accepted words
        return f"<{kinds[0].__name__}>"
    words = [typing.get_args(kind) or (f"<{kind.__name__}>",) for kind in kinds]
    return "|".join(word for some in words for word in some)
