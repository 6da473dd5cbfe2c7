"""The command ``mtlkit``; each subcommand is a module of this package, imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info

from mtlkit._version import __version__
from mtlkit.cli import failures
from mtlkit.config.extras import missing_extra
from mtlkit.config.launching import LaunchError, is_first_process
from mtlkit.errors import MtlkitError, SpecError

COMMANDS = {
    "architectures": "List the architectures, or show the options of one.",
    "compare": "Compare methods on several seeds, with statistics and a report.",
    "data": "List the data sets, or describe one.",
    "diagnose": "Train a copy for some steps; report how task gradients interact, and what to try.",
    "doctor": "Show versions, devices and extras, and what is missing.",
    "evaluate": "Evaluate the network of a run on a labeled file.",
    "export": "Export a trained network as one file: pt2, ONNX or safetensors.",
    "front": "Evaluate a network at many preferences between its tasks, and draw the Pareto front.",
    "methods": "List all methods, or show the page of one.",
    "predict": "Predict on new samples with the network of a run.",
    "report": "Write a self-contained HTML report of results, and their tables.",
    "schema": "Print the JSON schema of a command's settings, for editors.",
    "speed": "Measure the time of a step with each method on this machine.",
    "train": "Train one network with one method.",
    "tune": "Tune the settings of every method with the same number of trials.",
}
"""Modules of this package that define a command, and their line in ``mtlkit --help``."""


class _PlainFlags:
    """Shows no type beside a flag in the help; ``<bool>`` would look as if it took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """The class of all commands."""


class _Commands(_PlainFlags, TyperGroup):
    """Lists the commands by name and imports the module of a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else _load(str(name)), rest


app = typer.Typer(
    name="mtlkit",
    help="Multi-task learning: train networks, compare methods, report results.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _load(name: str) -> Any:
    """Return the command that a module defines."""
    module = f"{__name__}.{name}"
    importlib.import_module(module)
    (info,) = [i for i in app.registered_commands if i.callback and i.callback.__module__ == module]
    info.name = name
    if not issubclass(info.cls or TyperCommand, Command):
        info.cls = Command
    command = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode="rich")
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # wrapped by the terminal
    return command


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"mtlkit {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exit codes: 0 done, 1 a run failed, 2 bad usage, 130 interrupted."""
    if not is_first_process():  # one process prints torch's C++ warnings
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    sys.exit(_run(None if arguments is None else list(arguments)))


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="mtlkit", standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (typer.Abort, KeyboardInterrupt) as stop:
        typer.echo(str(stop) or "interrupted", err=True)
        return 130
    except MtlkitError as error:
        if isinstance(error, LaunchError) and not is_first_process():
            return 0  # failing here could kill the first process before it prints the error
        typer.echo(f"mtlkit: {error}", err=True)
        return 2 if isinstance(error, SpecError) else 1
    except ModuleNotFoundError as error:
        missing = missing_extra(error, "this command")
        if missing is None:
            return failures.report(error)
        typer.echo(f"mtlkit: {missing}", err=True)
        return 1
    except Exception as error:
        if not _is_usage_error(error):
            return failures.report(error)
        error.show()  # type: ignore[attr-defined]
        return int(getattr(error, "exit_code", 2))
    return code if isinstance(code, int) else 0


def _is_usage_error(error: Exception) -> bool:
    """Return whether the command line is wrong; typer has its own copy of click, or uses click's."""
    return hasattr(error, "show") and any(c.__name__ == "ClickException" for c in type(error).__mro__)
