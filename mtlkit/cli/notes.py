"""Warnings of a run, as the command line shows them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
