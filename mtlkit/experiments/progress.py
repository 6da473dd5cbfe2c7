"""The progress of many trainings: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from mtlkit.experiments.jobs import Job

_TAIL = 8192
_SILENCE = 15.0
"""Seconds without output after which a line reports the running trainings."""


class Display:
    """Shows the number of finished trainings, the running ones, and the table that ``body`` returns.

    With ``shown=False`` it shows nothing; by default, a live view on a terminal and lines elsewhere.
    """

    def __init__(
        self, title: str, total: int, body: Callable[[], Any], shown: bool | None = None
    ) -> None:
        self.title, self.total, self.done = title, total, 0
        self._body = body
        self._quiet = shown is False
        self._live: Any = None
        self._note = ""
        self._running: dict[str, tuple[Job, str, float]] = {}
        self._errors: list[str] = []
        self._begun = self._spoken = time.monotonic()
        self._found = 0
        self._closed = threading.Event()
        if shown is None and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                get_renderable=self.render,
                console=Console(stderr=True),
                refresh_per_second=2,
                transient=True,  # the caller prints the final table
            )

    def found(self, number: int) -> None:
        """Count trainings that an earlier call finished."""
        self.done += number
        self._found += number

    def started(self, job: Job, name: str = "") -> None:
        """Show that a training begins."""
        self._note = ""
        self._running[job.folder] = (job, name or job.name, time.monotonic())

    def ended(self, job: Job, text: str, error: str = "", *, counts: bool = True) -> None:
        """Show that a training ended; ``text`` is its result."""
        _, name, begun = self._running.pop(job.folder, (job, job.name, time.monotonic()))
        self.done += counts
        if error:
            self._errors.append(f"  {name} failed: {error[:160]}")
        text = f"FAILED: {error}" if error else text
        if counts:
            spent = time.monotonic() - begun
            self._say(f"[{self.done}/{self.total}] {name}: {text} ({spent:.1f} s)")

    def note(self, text: str) -> None:
        """Show a line about the current work."""
        if text and text.partition(":")[0] != self._note.partition(":")[0]:
            self._say(text)
        self._note = text

    def render(self) -> Any:
        """Build the live view."""
        from rich.console import Group
        from rich.text import Text

        lines: list[Any] = [Text(self._head(), style="bold"), self._body()]
        lines += [Text(self._note, style="dim")] if self._note else []
        lines += [Text(f"  {text}", style="dim") for text in self._states()]
        return Group(*lines, *(Text(text, style="red") for text in self._errors[-4:]))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        elif not self._quiet:
            threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._live is not None:
            self._note = ""
            self._live.stop()

    def _head(self) -> str:
        passed, worked = time.monotonic() - self._begun, self.done - self._found
        head = f"{self.title}: {self.done} of {self.total} training runs, {clock(passed)}"
        if worked and self.done < self.total:
            head += f", about {clock(passed / worked * (self.total - self.done))} to go"
        return head

    def _states(self) -> list[str]:
        now = time.monotonic()
        return [
            f"{name}: {progress_of(job)}{clock(now - begun)}"
            for job, name, begun in list(self._running.values())
        ]

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        if self._live is None and not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def _break_silence(self) -> None:
        while not self._closed.wait(1.0):
            if self.done < self.total and time.monotonic() - self._spoken >= _SILENCE:
                self._say("; ".join([self._head(), *self._states()]))


def progress_of(job: Job) -> str:
    """Read the progress of a training from the end of its log."""
    path = Path(job.folder) / "log.jsonl"
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            record = json.loads(line)
            epoch, step = record["epoch"], record["step"]
        except (ValueError, KeyError, TypeError):
            continue
        epochs = job.train.get("epochs")
        return f"epoch {epoch}{f' of {epochs}' if epochs else ''}, step {step}, "
    return ""


def clock(seconds: float) -> str:
    """Format days, hours, minutes and seconds, without those that are zero at the start.

    >>> clock(75), clock(3700), clock(5)
    ('1:15', '1:01:40', '0:05')
    """
    return str(timedelta(seconds=int(seconds))).removeprefix("0:").removeprefix("0")
