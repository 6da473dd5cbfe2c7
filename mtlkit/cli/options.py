"""Command-line options made from the fields of settings, so that no option is named twice."""

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

from mtlkit.config.settings import Settings, choices, display
from mtlkit.errors import SpecError


def _load(plugins: list[str] | None) -> list[str]:
    if plugins:
        from mtlkit.config.plugins import load_plugins

        load_plugins(plugins)
    return plugins or []


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="Your own Python file or module, which registers what is listed; may be repeated.",
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
    int | None, typer.Option(min=1, help="Samples per pass; default by the kind of input.")
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
        raise SpecError(f"{option} is a number by task, such as seg=2,depth=1, not {text!r}") from None


def command_of(model: type[Settings]) -> type[TyperCommand]:
    """A command whose error for an unknown option names the setting that is meant by it.

    Its help shows a switch and its opposite in one column, and the opposite only where it does something
    without a file, so that no name is cut.
    """

    class Command(TyperCommand):
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
            except Exception as error:  # typer brings its own copy of click, or uses click's
                given = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
                meant = model.synonyms.get(given)
                if meant in model.model_fields and hasattr(error, "possibilities"):
                    error.possibilities = [f"--{meant.replace('_', '-')}"]
                raise

    return Command


def with_settings(
    model: type[Settings], only: Sequence[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``**settings`` of a command by one option for each setting of ``model``, or some.

    The command is given those that stand on the command line. Settings that are mappings have no option.
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
        rich_help_panel=_panel(name, field),
        show_default=False,
        metavar=None if kind is bool else _metavar(display(field).cli or field.annotation),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, info],
    )


_BASIC = frozenset(
    {"data", "method", "methods", "architecture", "epochs", "steps", "batch_size", "lr", "seed", "seeds"}
    | {"output", "jobs", "minutes", "trials", "tuned"}
)
"""Settings that most people change; the help shows the others below."""


def _panel(name: str, field: FieldInfo) -> str:
    return "Options" if name in _BASIC else f"Advanced: {display(field).panel.lower()}"


def _kind(annotation: Any) -> Any:
    """The type of an option on the command line; None where there is none."""
    for kind in choices(annotation):
        if kind is bool:
            return bool
        if kind in (int, float, str) or typing.get_origin(kind) is typing.Literal:
            return str  # the settings themselves read numbers, and say what fits
        if typing.get_origin(kind) in (list, tuple):
            return list[str]
    return None


def _default(field: FieldInfo) -> str:
    """The default as the help shows it; the option's own is None, to know what was given."""
    value = field.default
    if field.is_required() or value is False or value in (None, "", [], {}):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f" [default: {'yes' if value is True else shown}]"


def _metavar(annotation: Any) -> str | None:
    """What fits; None for a switch, and where nothing but the settings themselves can say it."""
    kinds = list(choices(annotation))
    if any(typing.get_origin(kind) in (list, tuple) for kind in kinds):
        return "<str>,..."
    literal = any(typing.get_origin(kind) is typing.Literal for kind in kinds)
    if not literal and (kinds[0] not in (int, float, str) or len(kinds) > 1):
        return None
    if kinds[0] in (int, float):  # the description names the words that fit too
        return f"<{kinds[0].__name__}>"
    words = [typing.get_args(kind) or (f"<{kind.__name__}>",) for kind in kinds]
    return "|".join(word for some in words for word in some)
