"""Locks between processes that a killed process leaves free: the system drops them with the process."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

try:
    import fcntl as _fcntl
except ImportError:  # Windows: one process at a time
    _fcntl = None  # type: ignore[assignment]
fcntl: Any = _fcntl


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process is within a block of this file."""
    with open(path, "a", encoding="utf-8") as file:
        _hold(file)
        yield


class JournalLock:
    """The lock that Optuna's journal is written under.

    Optuna's own ones are files that a killed process leaves behind, for the others to wait for. This one
    also takes away a last line that a killed process left unfinished; Optuna would stop at it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}.lock")
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
        _hold(self._file)
        self._mend()
        return True

    def release(self) -> None:
        """Let the others go on."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _mend(self) -> None:
        if not self._journal.exists():
            return
        with open(self._journal, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return
            file.seek(size - 1)
            if file.read(1) == b"\n":
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


class Worker:
    """A process that works on a search. Others can tell whether it is still alive.

    Args:
        folder: where all workers have a file each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._file = open(folder / self.name, "a", encoding="utf-8")  # noqa: SIM115
        _hold(self._file)

    def is_alive(self, name: str) -> bool:
        """Whether the worker of this name still runs."""
        if name == self.name:
            return True
        path = self._folder / name
        if fcntl is None or not path.is_file():
            return False
        with open(path, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # a file system without locks
                return False
        path.unlink(missing_ok=True)
        return False

    def leave(self) -> None:
        """Say that this worker has ended."""
        (self._folder / self.name).unlink(missing_ok=True)
        self._file.close()


def _hold(file: IO[str]) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
