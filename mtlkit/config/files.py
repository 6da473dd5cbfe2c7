"""Atomic writes: a file is written under a temporary name and renamed once it is on disk."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNFINISHED = ".*.tmp"
"""Pattern of the files that a killed process may leave behind."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path, renamed to ``path`` at the end and removed after an exception.

    A missing folder is created.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())  # a full disk may show only here
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a file that holds a JSON object; None if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _sync_folder(path: Path) -> None:
    """Make a rename survive a power failure, if the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
