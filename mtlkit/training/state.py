"""The position and state of a run, saved to checkpoints and restored from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object

from mtlkit.errors import UsageError
from mtlkit.training.accelerators import is_sharded
from mtlkit.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    check_resume,
    load_checkpoint,
    read_rng,
)
from mtlkit.training.readings import check_parameters
from mtlkit.training.step import LossModule


@dataclass
class FitResult:
    """The result of :meth:`mtlkit.Trainer.fit`.

    Attributes:
        step: number of optimizer steps, from the start of the run.
        epoch: number of complete epochs.
        validation: metrics of the last validation by task; empty without one.
        best_step: step of the best validation; None without one.
        best_checkpoint: file with the best weights; None for a run without an output folder.
        stopped_early: whether ``early_stopping_patience`` ended the run.
        still_improving: whether the last of several validations was the best, so that more steps may
            help.

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


@dataclass
class Position:
    """The position of a run; part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Number of used batches in this epoch."""
    best: float | None = None
    best_step: int | None = None
    first: dict[str, float] = field(default_factory=dict)
    """Metrics of the first validation, by ``task/metric``."""
    validated: int | None = None
    """Step of the last validation."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of the last validation by task."""
    validations: int = 0
    without_progress: int = 0
    """Validations since the best one."""
    done: bool = False
    """Whether the run was stopped early."""

    def is_due(self, every: int | None) -> bool:
        """Return whether this step is a multiple of ``every``; False for None."""
        return every is not None and self.step % every == 0

    def reached(self, epochs: int | None, steps: int | None) -> bool:
        """Return whether training is over."""
        return (
            self.done
            or (epochs is not None and self.epoch >= epochs)
            or (steps is not None and self.step >= steps)
        )

    def judge(self, score: float, patience: int | None) -> bool:
        """Record the score of a validation; True if it is the best so far."""
        self.validations += 1
        if self.best is None or score > self.best:
            self.best, self.best_step, self.without_progress = score, self.step, 0
            return True
        self.without_progress += 1
        self.done = self.gave_up(patience)
        return False

    def result(self, best_checkpoint: Path | None) -> FitResult:
        """Return the result of the training."""
        return FitResult(
            step=self.step,
            epoch=self.epoch,
            validation=self.metrics,
            best_step=self.best_step,
            best_checkpoint=best_checkpoint,
            stopped_early=self.done,
            still_improving=self.validations > 1 and self.best_step == self.validated,
        )

    def gave_up(self, patience: int | None) -> bool:
        """Return whether this many validations brought no progress; False for None."""
        return patience is not None and self.without_progress >= patience


class Saver:
    """Saves the state of a run to checkpoints, and restores it.

    Args:
        output: folder of the run; None saves nothing.
        keep: number of recent checkpoints to keep, in addition to the best.
        module: model, method and losses.
        optimizer: optimizer prepared by Accelerate.
        schedulers: learning-rate schedulers.
        seed: seed of the run; checkpoints of other seeds are refused.
    """

    def __init__(
        self,
        output: Path | None,
        keep: int,
        module: LossModule,
        optimizer: Any,
        schedulers: Sequence[Any],
        seed: int,
    ) -> None:
        self.checkpoints = None if output is None else Checkpoints(output / "checkpoints", keep)
        self.module, self.model = module, module.model
        self.optimizer, self.schedulers = optimizer, schedulers
        self.accelerator = module.accelerator
        self.sharded = is_sharded(self.accelerator)
        self.identity = {
            "tasks": [task.name for task in module.tasks],
            "method": str(module.method),
            "seed": seed,
        }

    @property
    def best(self) -> Path | None:
        """The best checkpoint, if there is one."""
        checkpoints = self.checkpoints
        return checkpoints.best if checkpoints is not None and checkpoints.best.exists() else None

    def holds(self, step: int) -> bool:
        """Return whether the newest checkpoint is of this step."""
        newest = [] if self.checkpoints is None else self.checkpoints.paths()
        return bool(newest) and f"{step:09d}" in newest[-1].name

    def save(self, here: Position, *, best: bool | None = None) -> Path | None:
        """Write a checkpoint; every process must call this. ``best`` overrides the validation score."""
        if self.checkpoints is None:
            return None
        check_parameters(self.module, here.step)
        scaler = self.accelerator.scaler
        state = {
            "position": asdict(here),
            **self.identity,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": None if scaler is None else scaler.state_dict(),
            "losses": self.module.losses.state_dict(),
            "rng": gather_object([read_rng()]),
            **self._read_weights(),
        }
        path = None
        if self.accelerator.is_main_process:
            is_best = here.best_step == here.step if best is None else best
            path = self.checkpoints.save(here.step, state, best=is_best)
        self.accelerator.wait_for_everyone()
        return path or self.checkpoints.directory / f"step-{here.step:09d}.pt"

    def load_best(self) -> bool:
        """Load the best weights into the model; return False if there are none."""
        if self.best is None:
            return False
        self._write_weights(load_checkpoint(self.best))
        return True

    def load_last(self, epochs: int) -> Iterator[int]:
        """Load the weights after each of the last epochs in turn, and yield their steps."""
        paths = [] if self.checkpoints is None else self.checkpoints.paths()
        states = [(path, load_checkpoint(path)["position"]) for path in paths]
        ends = [(path, position["step"]) for path, position in states if position["batch"] == 0]
        if not ends:
            raise UsageError("there is no checkpoint of a complete epoch; train for at least one epoch")
        for path, step in ends[-epochs:]:
            self._write_weights(load_checkpoint(path))
            yield step

    def resume(
        self, resume: str | os.PathLike[str] | None, step: int
    ) -> tuple[Position, dict[str, Any] | None, int] | None:
        """Restore a checkpoint; return position, random state, and the processes that wrote it."""
        path = self._find(resume, step)
        if path is None:
            return None
        state = load_checkpoint(path)
        ranks, rank = state["rng"], self.accelerator.process_index
        self._restore(state, path)
        position = Position(**state["position"])
        explicit = resume != "auto"
        # a process may have been killed after it wrote its best checkpoint, before it was named best
        if self.checkpoints is not None and (explicit or position.best_step is not None):
            known = True
            if self.accelerator.is_main_process:
                if explicit:
                    self.checkpoints.set_aside(position.step)
                known = self.checkpoints.adopt_best(Path(path), position.best_step)
            if not broadcast_object_list([known])[0]:
                position.best = position.best_step = None
        return position, ranks[rank] if rank < len(ranks) else None, len(ranks)

    def _find(self, resume: str | os.PathLike[str] | None, step: int) -> str | None:
        """Return the checkpoint to resume from, if any."""
        check_resume(resume)
        if resume is None:
            if self.checkpoints is not None and step == 0:
                refuse_old_run(self.checkpoints)
            return None
        if str(resume) != "auto":
            return str(resume)
        if self.checkpoints is None:
            raise UsageError("resume='auto' needs an output folder: pass output=... to Trainer")
        path = None
        if self.accelerator.is_main_process:
            self.checkpoints.clean()
            found = self.checkpoints.latest()
            path = None if found is None else str(found[0])
        newest: str | None = broadcast_object_list([path])[0]
        return newest

    def _restore(self, state: Mapping[str, Any], path: str) -> None:
        """Restore the state loaded from ``path``; raise if it is of another run."""
        for what, now in self.identity.items():
            if state[what] != now:
                raise CheckpointError(
                    f"{path} is from a run with {what} {state[what]!r}, but this one has {now!r}; "
                    "resume with the same settings, or start a new run in another folder"
                )
        try:
            self._write_weights(state)
            self._write_optimizer(state)
            self.module.losses.load_state_dict(state["losses"])
            for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
                scheduler.load_state_dict(saved)
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path} does not match this model or optimizer: {error}; build them as in the original "
                "run"
            ) from None

    def _read_weights(self) -> dict[str, Any]:
        """Return unsharded weights and optimizer state; every process must call this."""
        if not self.sharded:
            moments = self.optimizer.state_dict()
            return {"model": self.model.state_dict(), "optimizer": moments, "sharded": False}
        sharding, options = _whole_states(cpu_offload=True)
        weights, moments = sharding.get_state_dict(self.model, self.optimizer.optimizer, options=options)
        return {"model": dict(weights), "optimizer": moments, "sharded": True}

    def _write_weights(self, state: Mapping[str, Any]) -> None:
        if not self.sharded:
            self.model.load_state_dict(state["model"])
            return
        sharding, options = _whole_states()
        sharding.set_model_state_dict(self.model, dict(state["model"]), options=options)

    def _write_optimizer(self, state: Mapping[str, Any]) -> None:
        """Load the optimizer's state, which must be from a run with the same sharding."""
        if bool(state["sharded"]) != self.sharded:
            kind = "with" if state["sharded"] else "without"
            raise ValueError(f"the optimizer's state was saved {kind} FSDP")
        if not self.sharded:
            self.optimizer.load_state_dict(state["optimizer"])
            return
        sharding, options = _whole_states()
        sharding.set_optimizer_state_dict(
            self.model, self.optimizer.optimizer, state["optimizer"], options=options
        )


def _whole_states(**options: Any) -> tuple[Any, Any]:
    """Return torch's functions for the states of sharded models, and options for states in one piece."""
    from torch.distributed.checkpoint import state_dict as sharding

    return sharding, sharding.StateDictOptions(full_state_dict=True, **options)


def refuse_old_run(checkpoints: Checkpoints) -> None:
    """Raise if a new run would write to the folder of another run."""
    old = checkpoints.paths()
    if old:
        raise UsageError(
            f"{checkpoints.directory.parent} already contains a run ({old[-1].name}); resume it with "
            "resume='auto' (--resume auto), or choose another output folder"
        )
