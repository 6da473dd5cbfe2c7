"""The command ``mtlkit``. Every module of this package adds its command to :data:`app`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import typer

from mtlkit._version import __version__
from mtlkit.errors import MtlkitError, SpecError

__all__ = ["app", "main"]

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
    for module in pkgutil.iter_modules(__path__):
        if module.name == "__main__":
            continue
        importlib.import_module(f"{__name__}.{module.name}")
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        code = 130
    except MtlkitError as error:
        typer.echo(f"mtlkit: {error}", err=True)
        code = 2 if isinstance(error, SpecError) else 1
    sys.exit(code if isinstance(code, int) else 0)
