"""Where a run is, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Position:
    """Where a run is; part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that have been used."""
    best: float | None = None
    best_step: int | None = None
    first: dict[str, float] = field(default_factory=dict)
    """Metrics of the first validation, by ``task/metric``."""
    validated: int | None = None
    """Step of the last validation."""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    """What it found, by task."""
    without_progress: int = 0
    """Validations since the best one."""
    done: bool = False
    """Whether the run was stopped early."""

    def is_due(self, every: int | None) -> bool:
        """Whether this step is a multiple of ``every``; False for None."""
        return every is not None and self.step % every == 0

    def reached(self, epochs: int | None, steps: int | None) -> bool:
        """Whether training is over."""
        return (
            self.done
            or (epochs is not None and self.epoch >= epochs)
            or (steps is not None and self.step >= steps)
        )

    @staticmethod
    def end(batches: Any, accumulate: int, epochs: int | None, steps: int | None) -> int | None:
        """The step that training ends at; None where the loader does not know its length."""
        if epochs is None:
            return steps
        try:
            whole = epochs * math.ceil(len(batches) / accumulate)
        except TypeError:
            return steps
        return whole if steps is None else min(whole, steps)

    def judge(self, score: float, patience: int | None) -> bool:
        """Record the score of a validation; True if it is the best so far."""
        if self.best is None or score > self.best:
            self.best, self.best_step, self.without_progress = score, self.step, 0
            return True
        self.without_progress += 1
        self.done = self.gave_up(patience)
        return False

    def gave_up(self, patience: int | None) -> bool:
        """Whether this many validations brought no progress; False for None."""
        return patience is not None and self.without_progress >= patience


@dataclass
class FitResult:
    """How training ended.

    Attributes:
        step: optimizer steps taken, those of a resumed run included.
        epoch: whole epochs.
        validation: figures of the last validation, by task; empty without one.
        best_step: step of the best validation; None without one.
        best_checkpoint: file with the weights to use; None for a run without an output folder.
        stopped_early: whether ``early_stopping_patience`` ended it.
    """

    step: int
    epoch: int
    validation: dict[str, dict[str, float]]
    best_step: int | None
    best_checkpoint: Path | None
    stopped_early: bool
