"""Warnings of a run, as the command line shows them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

__all__ = ["warnings_as_notes"]


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings as one line each, without those of libraries about their own code."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning):
            typer.echo(f"note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
