"""The progress bar of a training run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_INTERVAL = 0.5


class Progress:
    """A bar with losses, main metrics, the share of conflicts, and the rate.

    Args:
        shown: whether to show anything.
        total: steps to be taken, None if that is not known.
    """

    def __init__(self, shown: bool, total: int | None) -> None:
        self._bar: Any = None
        self._next = float("inf")
        self._started_at = 0
        self._total = total
        if shown:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                refresh_per_second=4,
            )

    @staticmethod
    def wanted(shown: bool | None) -> bool:
        """``shown``; None means on a terminal only."""
        return sys.stderr.isatty() if shown is None else shown

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._row = self._bar.add_task("epoch 1", total=self._total, figures="")
            self._next = 0.0
            self._begun = time.monotonic()
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
        """Show the figures of this step."""
        now = time.monotonic()
        self._next = now + _INTERVAL
        rate = (step - self._started_at) / max(now - self._begun, 1e-9)
        pieces = [f"{name} {value:.3g}" for name, value in list(losses.items())[:4]]
        for name, figures in list(validation.items())[:4]:
            metric = next((key for key in figures if key != "loss"), "loss")
            pieces.append(f"{name} {metric} {figures[metric]:.3g}")
        if conflict is not None:
            pieces.append(f"conflict {conflict:.0%}")
        pieces.append(f"{rate:.1f} steps/s")
        self._bar.update(
            self._row, completed=step, description=f"epoch {epoch + 1}", figures=" | ".join(pieces)
        )
