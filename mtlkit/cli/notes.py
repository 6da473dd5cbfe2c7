"""Warnings as notes on the terminal."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import typer

__all__ = ["is_first_process", "notes"]


def is_first_process() -> bool:
    """Whether this is the one of several processes that speaks."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Show each warning as one line, once, and by the first process alone."""
    said = set[str]()

    def say(message: Any, *_: Any, **__: Any) -> None:
        text = str(message)
        if is_first_process() and text not in said:
            said.add(text)
            typer.echo(f"note: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
