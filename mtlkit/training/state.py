"""Where a run is and what training changes: saved to checkpoints, and restored from one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from mtlkit.errors import UsageError
from mtlkit.training.accelerators import broadcast, gather, is_sharded
from mtlkit.training.checkpoints import CheckpointError, Checkpoints, load_checkpoint, read_rng
from mtlkit.training.readings import check_parameters
from mtlkit.training.step import LossModule


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
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """What it measured, by task."""
    validations: int = 0
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
    def end(batches: Any, batches_per_step: int, epochs: int | None, steps: int | None) -> int | None:
        """Return the step that training ends at; None where the loader does not know its length."""
        if epochs is None:
            return steps
        try:
            whole = epochs * math.ceil(len(batches) / batches_per_step)
        except TypeError:
            return steps
        return whole if steps is None else min(whole, steps)

    def judge(self, score: float, patience: int | None) -> bool:
        """Record the score of a validation; True if it is the best so far."""
        self.validations += 1
        if self.best is None or score > self.best:
            self.best, self.best_step, self.without_progress = score, self.step, 0
            return True
        self.without_progress += 1
        self.done = self.gave_up(patience)
        return False

    @property
    def still_improving(self) -> bool:
        """Whether the last of several validations was the best."""
        return self.validations > 1 and self.best_step == self.validated

    def gave_up(self, patience: int | None) -> bool:
        """Whether this many validations brought no progress; False for None."""
        return patience is not None and self.without_progress >= patience


@dataclass
class FitResult:
    """How training ended; :meth:`mtlkit.Trainer.fit` returns it.

    Attributes:
        step: optimizer steps taken, those of a resumed run included.
        epoch: complete epochs.
        validation: metrics of the last validation, by task; empty without one.
        best_step: step of the best validation; None without one.
        best_checkpoint: file with the weights to use; None for a run without an output folder.
        stopped_early: whether ``early_stopping_patience`` ended it.
        still_improving: whether the last of several validations was the best, so that more steps might
            give a better network.

    >>> from mtlkit.training import FitResult
    >>> fit = FitResult(90, 3, {}, best_step=90, best_checkpoint=None, stopped_early=False)
    >>> fit.step, fit.still_improving
    (90, False)
    """

    step: int
    epoch: int
    validation: dict[str, dict[str, float]]
    best_step: int | None
    best_checkpoint: Path | None
    stopped_early: bool
    still_improving: bool = False


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
        """Return the state as plain values; every process must call this."""
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


def read_weights(model: nn.Module, optimizer: Any, accelerator: Any) -> dict[str, Any]:
    """Return unsharded weights and optimizer state; every process must call this."""
    if not is_sharded(accelerator):
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sharded": False}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer.optimizer, options=options)
    return {"model": dict(weights), "optimizer": moments, "sharded": True}


def write_weights(model: nn.Module, state: Mapping[str, Any], accelerator: Any) -> None:
    """Give the model its weights."""
    if not is_sharded(accelerator):
        model.load_state_dict(state["model"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, dict(state["model"]), options=options)


def write_optimizer(
    model: nn.Module, optimizer: Any, state: Mapping[str, Any], accelerator: Any
) -> None:
    """Give the optimizer its state; the run must be sharded if the one that saved it was."""
    if bool(state["sharded"]) != is_sharded(accelerator):
        raise ValueError(
            "the optimizer's state was saved with FSDP" if state["sharded"] else "without FSDP"
        )
    if not state["sharded"]:
        optimizer.load_state_dict(state["optimizer"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer.optimizer, state["optimizer"], options=options)


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

    def load_last(self, epochs: int) -> Iterator[int]:
        """Give the model the weights after each of the last epochs in turn, and yield their steps."""
        paths = [] if self.checkpoints is None else self.checkpoints.paths()
        states = [(path, load_checkpoint(path)["position"]) for path in paths]
        ends = [(path, position["step"]) for path, position in states if position["batch"] == 0]
        if not ends:
            raise UsageError("no checkpoint of a complete epoch is kept; train for an epoch at least")
        for path, step in ends[-epochs:]:
            write_weights(self.state.module.model, load_checkpoint(path), self.accelerator)
            yield step

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
    """Return the checkpoint to start from; None for none.

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
