"""Messages on stderr: warnings, progress, and how to resume."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from mtlkit.config.launching import is_first_process


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each user warning once, on one line, from the first of several processes.

    Warnings of libraries about their own code are not shown.
    """
    printed = set[str]()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = str(message)
        if issubclass(category, UserWarning) and is_first_process() and text not in printed:
            printed.add(text)
            typer.echo(f"note: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def resumable(*command: str) -> Iterator[None]:
    """Print warnings as notes and, after an interruption, the command that resumes the work."""
    from mtlkit.experiments.compare import Stopped

    with warnings_as_notes():
        try:
            yield
        except Stopped as stop:
            typer.echo(f"{stop}; resume with: {shlex.join(['mtlkit', *command])}", err=True)
            raise typer.Exit(130) from None


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; the function that is yielded sets the number done and the total."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def default_folder(name: str) -> Path:
    """Return the default output folder of a comparison or search."""
    return Path("runs") / re.sub(r"[^A-Za-z0-9.=-]+", "_", name)[:68].strip("_")
