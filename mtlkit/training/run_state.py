"""The state of a run: read into a checkpoint, and restored from one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mtlkit.errors import UsageError
from mtlkit.training.accelerators import broadcast, gather
from mtlkit.training.checkpoints import CheckpointError, Checkpoints, read_rng
from mtlkit.training.loss_module import LossModule
from mtlkit.training.position import Position
from mtlkit.training.weights import read_weights, write_optimizer, write_weights


class RunState:
    """The parts of a run that training changes.

    Args:
        module: model, method and losses.
        optimizer: as Accelerate prepared it.
        schedulers: of the learning rate.
        seed: of the order of the samples.
        accelerator: of the run.
    """

    def __init__(
        self,
        module: LossModule,
        optimizer: Any,
        schedulers: Sequence[Any],
        seed: int,
        accelerator: Any,
    ) -> None:
        self.module = module
        self.optimizer = optimizer
        self.schedulers = schedulers
        self.accelerator = accelerator
        self.identity = {
            "tasks": [task.name for task in module.tasks],
            "method": str(module.method),
            "seed": seed,
        }

    def read(self, position: Position) -> dict[str, Any]:
        """The state as plain values; every process must call this."""
        scaler = self.accelerator.scaler
        return {
            "position": asdict(position),
            **self.identity,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": None if scaler is None else scaler.state_dict(),
            "losses": self.module.losses.state_dict(),
            "rng": gather(read_rng(), self.accelerator),
            **read_weights(self.module.model, self.optimizer, self.accelerator),
        }

    def write(self, state: Mapping[str, Any], path: str) -> Position:
        """Restore the state that was loaded from ``path``, and return the position.

        Raises:
            CheckpointError: for the state of another run.
        """
        for what, now in self.identity.items():
            if state[what] != now:
                raise CheckpointError(
                    f"{path} is of a run with {what} {state[what]!r}, this one has {now!r}; "
                    "resume with the same settings, or start a new run in another folder"
                )
        try:
            write_weights(self.module.model, state, self.accelerator)
            write_optimizer(self.module.model, self.optimizer, state, self.accelerator)
            self.module.losses.load_state_dict(state["losses"])
            for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
                scheduler.load_state_dict(saved)
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path} does not fit this model or optimizer: {error}; build them as in the run that "
                "wrote it"
            ) from None
        return Position(**state["position"])


def refuse_old_run(checkpoints: Checkpoints) -> None:
    """Raise where a new run would write into the folder of another one."""
    old = checkpoints.paths()
    if old:
        raise UsageError(
            f"{checkpoints.directory.parent} holds a run already ({old[-1].name}); resume it with "
            "resume='auto' (--resume auto), or choose another output folder"
        )


def find_checkpoint(
    resume: str | os.PathLike[str] | None, checkpoints: Checkpoints | None, step: int, accelerator: Any
) -> str | None:
    """The checkpoint to start from; None for none.

    Raises:
        UsageError: where a new run would write into the folder of another one.
    """
    if resume is None:
        if checkpoints is not None and step == 0:
            refuse_old_run(checkpoints)
        return None
    if str(resume) != "auto":
        return str(resume)
    if checkpoints is None:
        raise UsageError("resume='auto' needs an output folder: pass output=... to Trainer")
    path = None
    if accelerator.is_main_process:
        checkpoints.clean()
        found = checkpoints.latest()
        path = None if found is None else str(found[0])
    newest: str | None = broadcast(path, accelerator)
    return newest
