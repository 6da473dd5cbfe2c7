"""Atomic writes: a file is written under a temporary name and renamed once it is on disk."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".*.tmp"
"""Pattern of the files that a killed process may leave behind."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, renamed to ``path`` at the end and removed after an exception.

    The folder is made where it is missing.
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
    """Write a text file, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync_folder(path: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
