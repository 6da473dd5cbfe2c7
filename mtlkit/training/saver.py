"""The checkpoints of a run: saving, and resuming from one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mtlkit.training.accelerators import broadcast
from mtlkit.training.checkpoints import Checkpoints, load_checkpoint
from mtlkit.training.nonfinite import check_parameters
from mtlkit.training.position import Position
from mtlkit.training.run_state import RunState, find_checkpoint
from mtlkit.training.weights import write_weights


class Saver:
    """Writes and reads the checkpoints of one run.

    Args:
        output: folder of the run; None saves nothing.
        keep: how many of the last checkpoints stay, besides the best.
        state: what a checkpoint holds.
    """

    def __init__(self, output: Path | None, keep: int, state: RunState) -> None:
        self.checkpoints = None if output is None else Checkpoints(output / "checkpoints", keep)
        self.state = state
        self.accelerator = state.accelerator

    @property
    def best(self) -> Path | None:
        """The best checkpoint; None where there is none."""
        checkpoints = self.checkpoints
        return checkpoints.best if checkpoints is not None and checkpoints.best.exists() else None

    def holds(self, step: int) -> bool:
        """Whether the newest checkpoint is of this step."""
        newest = [] if self.checkpoints is None else self.checkpoints.paths()
        return bool(newest) and f"{step:09d}" in newest[-1].name

    def save(self, here: Position, *, best: bool | None = None) -> Path | None:
        """Write a checkpoint; every process must call this. ``best`` overrides the validations."""
        if self.checkpoints is None:
            return None
        check_parameters(self.state.module, here.step)
        state = self.state.read(here)
        path = None
        if self.accelerator.is_main_process:
            is_best = here.best_step == here.step if best is None else best
            path = self.checkpoints.save(here.step, state, best=is_best)
        self.accelerator.wait_for_everyone()
        return path or self.checkpoints.directory / f"step-{here.step:09d}.pt"

    def load_best(self) -> bool:
        """Give the model the weights of the best checkpoint; False where there is none."""
        if self.best is None:
            return False
        write_weights(self.state.module.model, load_checkpoint(self.best), self.accelerator)
        return True

    def resume(
        self, resume: str | os.PathLike[str] | None, step: int
    ) -> tuple[Position, dict[str, Any] | None, str] | None:
        """Restore a checkpoint: its position, this process's random state, and where it is from."""
        path = find_checkpoint(resume, self.checkpoints, step, self.accelerator)
        if path is None:
            return None
        state = load_checkpoint(path)
        ranks, rank = state["rng"], self.accelerator.process_index
        origin = f"{path} was written by {len(ranks)} processes"
        position = self.state.write(state, path)
        if self.checkpoints is not None and resume != "auto":
            known = True
            if self.accelerator.is_main_process:
                self.checkpoints.set_aside(position.step)
                known = self.checkpoints.adopt_best(Path(path), position.best_step)
            if not broadcast(known, self.accelerator):
                position.best = position.best_step = None
        return position, ranks[rank] if rank < len(ranks) else None, origin
