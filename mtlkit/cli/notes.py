"""What the commands that train say beside their results: warnings, and how to resume."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from mtlkit.config.launching import is_first_process


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings as one line each, without those of libraries about their own code.

    Each is said once, and by the first of several processes.
    """
    said = set[str]()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = str(message)
        if issubclass(category, UserWarning) and is_first_process() and text not in said:
            said.add(text)
            typer.echo(f"note: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def resumable(*command: str) -> Iterator[None]:
    """Print warnings as notes, and where the work is stopped, the command that resumes it."""
    from mtlkit.experiments.compare import Stopped

    with warnings_as_notes():
        try:
            yield
        except Stopped as stop:
            typer.echo(f"{stop}; resume with: {shlex.join(['mtlkit', *command])}", err=True)
            raise typer.Exit(130) from None


def default_folder(name: str) -> Path:
    """Return the folder of a comparison or search that was given none."""
    return Path("runs") / re.sub(r"[^A-Za-z0-9.=-]+", "_", name)[:68].strip("_")
