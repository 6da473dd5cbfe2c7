"""The command ``mtlkit``. Each module of :data:`COMMANDS` adds its command to :data:`app`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import typer

from mtlkit._version import __version__
from mtlkit.errors import MtlkitError, SpecError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = (
    "architectures", "compare", "data", "doctor", "methods", "report", "schema", "train", "tune",
)  # fmt: skip
"""Modules of this package that hold a command."""

app = typer.Typer(
    name="mtlkit",
    help="Multi-task learning: compare methods, train, look at the results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"mtlkit {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version and exit.",
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exit codes: 0 done, 1 a run failed, 2 bad usage, 130 interrupted."""
    for name in COMMANDS:
        importlib.import_module(f"{__name__}.{name}")
    sys.exit(_run(None if arguments is None else list(arguments)))


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (typer.Abort, KeyboardInterrupt) as stop:
        typer.echo(str(stop) or "interrupted", err=True)
        return 130
    except MtlkitError as error:
        typer.echo(f"mtlkit: {error}", err=True)
        return 2 if isinstance(error, SpecError) else 1
    except Exception as error:
        if not _is_usage_error(error):
            raise
        error.show()  # type: ignore[attr-defined]
        return int(getattr(error, "exit_code", 2))
    return code if isinstance(code, int) else 0


def _is_usage_error(error: Exception) -> bool:
    """Whether the command line was wrong: typer brings its own copy of click, or uses click's."""
    return hasattr(error, "show") and any(c.__name__ == "ClickException" for c in type(error).__mro__)
