"""Stopping a run on Ctrl-C or SIGTERM, between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM, after finishing its step.

    Attributes:
        step: steps taken.
        checkpoint: what was saved; None for a run without an output folder.
    """

    def __init__(self, step: int, checkpoint: Path | None) -> None:
        saved = f"saved as {checkpoint}" if checkpoint else "nothing was saved: no output folder"
        super().__init__(f"stopped after step {step}; {saved}")
        self.step = step
        self.checkpoint = checkpoint


@contextlib.contextmanager
def catch_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on the first Ctrl-C or SIGTERM; the second one has its usual effect."""
    stop.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)

    def request(number: int, frame: Any) -> None:
        stop.set()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        old[int(number)] = signal.signal(number, request)
    try:
        yield
    finally:
        restore()
