"""Progress of a training run: a bar on a terminal, a line per epoch in a file or pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

_INTERVAL = 0.5
_MOST_TASKS = 4
_WIDE = 110
"""Terminal width from which there is room for a long bar."""

Shown = Literal["bar", "lines", ""]


class Progress:
    """Losses, main metrics, the share of conflicts, and the rate.

    Args:
        shown: ``bar``, ``lines``, or empty for nothing.
        total: steps to be taken, None if that is not known.
        console: of rich; None for one on stderr.
    """

    def __init__(self, shown: Shown, total: int | None, console: Any = None) -> None:
        self._bar: Any = None
        self._lines = shown == "lines"
        self._next = float("inf")
        self._started_at = 0
        self._begun = time.monotonic()
        self._total = total
        if shown == "bar":
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            console = Console(stderr=True) if console is None else console
            bar_width = 20 if console.width >= _WIDE else 10
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=bar_width),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=console,
                refresh_per_second=4,
            )
            # epoch, bar, step of steps, remaining time, and the spaces between them
            counted = 2 * len(str(total)) + 1
            self._room = console.width - len("epoch 1000") - bar_width - counted - len("00:00:00") - 4

    @staticmethod
    def wanted(shown: bool | None) -> Shown:
        """What to show; None means a bar on a terminal, and lines elsewhere."""
        if shown is None:
            return "bar" if sys.stderr.isatty() else "lines"
        return "bar" if shown else ""

    def __enter__(self) -> Progress:
        self._begun = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._row = self._bar.add_task("epoch 1", total=self._total, figures="")
            self._next = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, step: int) -> None:
        """Set the step that a resumed run starts from."""
        self._started_at = step
        if self._bar is not None:
            self._bar.update(self._row, completed=step)

    def due(self) -> bool:
        """Whether it is time to show new figures."""
        return self._bar is not None and time.monotonic() >= self._next

    def show(
        self,
        step: int,
        epoch: int,
        losses: Mapping[str, float],
        conflict: float | None,
        validation: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Show the figures of this step in the bar: as many as fit, the first ones first."""
        self._next = time.monotonic() + _INTERVAL
        pieces = [*_losses(losses), self._rate(step), *_metrics(validation)]
        if conflict is not None:
            pieces.append(f"conflict {conflict:.0%}")
        self._bar.update(
            self._row,
            completed=step,
            description=f"epoch {epoch + 1}",
            figures=_fit(pieces, self._room),
        )

    def end_epoch(
        self,
        step: int,
        epoch: int,
        losses: Mapping[str, float],
        validation: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Write the line of a finished epoch, where lines are shown."""
        if self._lines:
            of = "" if self._total is None else f" of {self._total}"
            figures = " | ".join([*_losses(losses), *_metrics(validation), self._rate(step)])
            print(f"epoch {epoch}, step {step}{of}: {figures}", file=sys.stderr, flush=True)

    def _rate(self, step: int) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return f"{(step - self._started_at) / seconds:.1f} steps/s"


def _losses(losses: Mapping[str, float]) -> list[str]:
    known = [(name, value) for name, value in losses.items() if math.isfinite(value)]
    return [f"{name} {value:.3g}" for name, value in known[:_MOST_TASKS]]


def _metrics(validation: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The main metric of the first tasks."""
    pieces = []
    for name, figures in list(validation.items())[:_MOST_TASKS]:
        metric = next((key for key in figures if key != "loss"), "loss")
        pieces.append(f"{name} {metric} {figures[metric]:.3g}")
    return pieces


def _fit(pieces: Sequence[str], room: int) -> str:
    """Whole pieces from the first on, as far as there is room for them."""
    text = ""
    for piece in pieces:
        longer = f"{text} | {piece}" if text else piece
        if len(longer) > room:
            break
        text = longer
    return text
