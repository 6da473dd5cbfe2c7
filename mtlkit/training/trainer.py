"""A thin training loop on Accelerate, which does devices, processes, precision and accumulation."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mtlkit.errors import NonFiniteError, SpecError, UsageError, unknown_name
from mtlkit.host import all_finite
from mtlkit.tasks import Task, task_names
from mtlkit.training.accelerators import (
    broadcast,
    check_processes,
    find_unused_parameters,
    gather,
    is_sharded,
    make_accelerator,
)
from mtlkit.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    load_checkpoint,
    read_rng,
    write_rng,
)
from mtlkit.training.interrupts import Interrupted, catch_signals
from mtlkit.training.loss_module import LossModule, unpack
from mtlkit.training.loaders import is_padded, open_loader, prepare_loader
from mtlkit.training.logs import LOG_NAME, Log
from mtlkit.training.monitor import Monitor
from mtlkit.training.progress import Progress
from mtlkit.training.validation import evaluate, score
from mtlkit.training.weights import read_weights, write_optimizer, write_weights

__all__ = ["FitResult", "Interrupted", "Trainer"]

_MOST_SKIPS = 50


@dataclass
class _Position:
    """Where a run is; part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that have been used."""
    best: float | None = None
    best_step: int | None = None
    first: dict[str, float] = field(default_factory=dict)
    """Main metrics of the first validation, by task."""
    without_progress: int = 0
    done: bool = False


@dataclass
class FitResult:
    """How training ended.

    Attributes:
        step: optimizer steps taken, those of a resumed run included.
        epoch: whole epochs.
        validation: figures of the last validation, by task; empty without one.
        best_step: step of the best validation; None without one.
        best_checkpoint: file with the weights to use; None for a run without an output folder.
        stopped_early: whether ``early_stop`` ended it.
    """

    step: int
    epoch: int
    validation: dict[str, dict[str, float]]
    best_step: int | None
    best_checkpoint: Path | None
    stopped_early: bool


class Trainer:
    """Train a network on several tasks.

    Args:
        model: a module whose forward returns predictions by task name, with its method in
            ``model.method`` (see :func:`mtlkit.create_architecture`); without one, losses are summed.
        tasks: what to learn, one :class:`~mtlkit.Task` for each task of the method.
        optimizer: over the parameters of ``model``; see :func:`mtlkit.param_groups`.
        accelerator: an ``accelerate.Accelerator``; None makes one from ``precision`` and
            ``accumulate``.
        scheduler: of the learning rate, or a list of them, stepped by ``scheduler_every``;
            ``ReduceLROnPlateau`` is given the validation's score and must have ``mode="max"``.
        scheduler_every: ``"step"`` or ``"epoch"``.
        output: folder for the log and the checkpoints; None writes nothing.
        precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        accumulate: batches per optimizer step.
        clip_norm: largest norm of the gradient.
        on_nonfinite: ``"raise"`` stops with the task's name when a loss or gradient is not finite;
            ``"skip"`` leaves that step out.
        validate_every: steps between validations; None validates after every epoch.
        checkpoint_every: steps between checkpoints; None saves with every validation or epoch.
        keep_checkpoints: how many of the last checkpoints stay, besides the best.
        best_by: which validation is best: ``"improvement"``, the tasks' mean relative gain over the
            first validation in their main metrics; ``"loss"``, the sum of the tasks' losses; or
            ``"task/metric"``.
        early_stop: stop after so many validations without a better one.
        log_every: steps between lines of the log.
        monitor_every: sample the method's statistics one step in so many; 0 turns it off.
        trackers: Accelerate's trackers, such as ``("tensorboard",)``.
        seed: of the order of the samples.
        progress: show a progress bar; None shows it on a terminal.
    """

    def __init__(
        self,
        model: nn.Module,
        tasks: Sequence[Task],
        optimizer: Optimizer,
        accelerator: Any = None,
        *,
        scheduler: Any = None,
        scheduler_every: Literal["step", "epoch"] = "step",
        output: str | os.PathLike[str] | None = None,
        precision: Literal["no", "bf16", "fp16"] = "no",
        accumulate: int = 1,
        clip_norm: float | None = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        validate_every: int | None = None,
        checkpoint_every: int | None = None,
        keep_checkpoints: int = 2,
        best_by: str = "improvement",
        early_stop: int | None = None,
        log_every: int = 50,
        monitor_every: int = 10,
        trackers: Sequence[str] = (),
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        _choose("on_nonfinite", on_nonfinite, ("raise", "skip"))
        _choose("scheduler_every", scheduler_every, ("step", "epoch"))
        _choose("precision", precision, ("no", "bf16", "fp16"))
        for name, number in (
            ("accumulate", accumulate),
            ("validate_every", validate_every),
            ("checkpoint_every", checkpoint_every),
            ("keep_checkpoints", keep_checkpoints),
            ("early_stop", early_stop),
            ("log_every", log_every),
        ):
            if number is not None and number < 1:
                raise SpecError(f"{name} must be at least 1, not {number}")
        if clip_norm is not None and not clip_norm > 0:
            raise SpecError(f"clip_norm must be above 0, not {clip_norm}")
        self.tasks = _check_tasks(tasks)
        self.output = None if output is None else Path(output)
        self.accelerator = accelerator or make_accelerator(precision, accumulate, trackers, self.output)
        check_processes(self.accelerator)
        self._alone = self.accelerator.num_processes == 1
        self._own_trackers = accelerator is None and bool(trackers)
        if accelerator is not None and accumulate != 1:
            accelerator.gradient_accumulation_steps = accumulate
        given = scheduler if isinstance(scheduler, list | tuple) else [scheduler]
        self.schedulers = [each for each in given if each is not None]
        self.scheduler_every = scheduler_every
        self.clip_norm = clip_norm
        self.on_nonfinite = on_nonfinite
        self.validate_every = validate_every
        self.checkpoint_every = checkpoint_every
        self.best_by = _check_best_by(best_by, self.tasks)
        self.early_stop = early_stop
        self.log_every = log_every
        self.seed = seed
        self.show_progress = progress

        self.model = model
        learner = LossModule(model, self.tasks, self.accelerator)
        self.method = learner.method
        self._accumulate = int(self.accelerator.gradient_accumulation_steps)
        find_unused_parameters(self.accelerator)
        self._learner, self.optimizer = self.accelerator.prepare(learner, optimizer)
        self._raw = self.accelerator.unwrap_model(self._learner)
        self.monitor = Monitor(self.method, monitor_every) if monitor_every else None
        self._checkpoints = (
            None if self.output is None else Checkpoints(self.output / "checkpoints", keep_checkpoints)
        )
        self._log: Log | None = None
        self._position = _Position()
        self._saved_rng: dict[str, Any] | None = None
        self._window: list[tuple[Sequence[Tensor | float | None], Sequence[float]]] = []
        self._spoiled: str | None = None
        self._skips = 0
        self._gram = self.method.last_gram
        self._stop = threading.Event()
        self._stop_agreed = False
        self._last_validation: dict[str, dict[str, float]] = {}

    @property
    def step(self) -> int:
        """Optimizer steps taken so far."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """Whole epochs so far."""
        return self._position.epoch

    def fit(
        self,
        train: Any,
        validation: Any = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> FitResult:
        """Train until ``epochs`` or ``steps`` are reached, counted from the beginning of the run.

        Args:
            train: loader of ``(inputs, {task: target})``; its batch is that of all processes together.
            validation: loader that decides which checkpoint is best. Never give the test set here.
            epochs: passes over ``train``.
            steps: optimizer steps; with both, whichever comes first.
            resume: ``"auto"`` for the newest good checkpoint in the output folder, if there is one;
                or a checkpoint's path.

        Raises:
            NonFiniteError: where a loss or gradient is not finite and ``on_nonfinite="raise"``.
            Interrupted: after Ctrl-C or SIGTERM, when the checkpoint has been written.
        """
        if epochs is None and steps is None:
            raise SpecError("give fit() epochs or steps")
        for name, number in (("epochs", epochs), ("steps", steps)):
            if number is not None and number < 0:
                raise SpecError(f"{name} must be 0 or more, not {number}")
        loader = prepare_loader(train, self.accelerator, self.seed)
        validating = (
            None if validation is None else prepare_loader(validation, self.accelerator, self.seed)
        )
        resumed = self._resume(resume)
        self._start_log(resumed)
        if validating is None:
            self._note("no validation set: the last checkpoint is kept as the best", once=not resumed)
        # Accelerate keeps this in a state that all accelerators of the process share
        self.accelerator.gradient_accumulation_steps = self._accumulate
        self._stop_agreed = False
        progress = Progress(self._shown(), self._total_steps(loader, epochs, steps))
        try:
            with catch_signals(self._stop), progress:
                progress.advance(self.step)
                while not self._reached(epochs, steps):
                    self._train_epoch(loader, validating, steps, progress)
                    if self._should_stop() and not self._reached(epochs, steps):
                        raise Interrupted(self.step, self._save())
                self._finish(validating)
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None
            for tracker in self.accelerator.trackers:
                if tracker.name == "tensorboard":
                    tracker.tracker.flush()
        best = None
        if self._checkpoints is not None and self._checkpoints.best.exists():
            best = self._checkpoints.best
        return FitResult(
            step=self.step,
            epoch=self.epoch,
            validation=self._last_validation,
            best_step=self._position.best_step,
            best_checkpoint=best,
            stopped_early=self._position.done,
        )

    def evaluate(self, loader: Any) -> dict[str, dict[str, float]]:
        """Loss and metrics of every task over all samples of ``loader``; NaN without any label."""
        loader = prepare_loader(loader, self.accelerator, self.seed)
        # DDP's own forward expects every process to call it equally often; a sharded one must be used
        network = self._learner if is_sharded(self.accelerator) else self._raw
        return evaluate(network, self.tasks, loader, self.accelerator)

    def load_best(self) -> bool:
        """Give the model the weights of the best checkpoint; False where there is none."""
        if self._checkpoints is None or not self._checkpoints.best.exists():
            return False
        write_weights(self._raw.model, load_checkpoint(self._checkpoints.best), self.accelerator)
        return True

    # One epoch, one step

    def _train_epoch(self, loader: Any, validating: Any, steps: int | None, progress: Progress) -> None:
        here = self._position
        self._learner.train()
        batches = open_loader(loader, here.epoch, here.batch, self.accelerator)
        saved = self._saved_rng
        try:
            for batch in batches:
                if saved is not None:  # what reading the first batch drew is put back
                    write_rng(saved)
                    saved = self._saved_rng = None
                stepped = self._train_batch(batch, self._alone or not is_padded(loader, here.batch))
                here.batch += 1
                if not stepped:
                    continue
                here.step += 1
                self._after_step(progress)
                last = steps is not None and here.step >= steps
                validates, saves = self._is_due(self.validate_every), self._is_due(self.checkpoint_every)
                stops = self._should_stop()
                if not (last or validates or saves or stops):
                    continue
                if self.accelerator.gradient_state.end_of_dataloader:
                    continue  # what is due at the end of an epoch is done there
                if last:
                    return
                if validates:
                    self._validate(validating)
                if validates or saves:
                    self._save()
                if here.done:
                    return
                if stops:
                    raise Interrupted(here.step, self._save())
        finally:
            if hasattr(batches, "end"):
                batches.end()  # Accelerate must not take a loader that was left for an open one
        if here.batch == 0:
            raise UsageError("the training loader gave no batch; is the data set empty?")
        self._close_epoch()
        if not self.validate_every or here.step % self.validate_every == 0:
            self._validate(validating)
        every = self.checkpoint_every
        if every is None or here.step % every == 0 or validating is not None:
            self._save()

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self._position.step % every == 0

    def _train_batch(self, batch: Any, labelled: bool) -> bool:
        """Whether the optimizer's turn came."""
        accelerator = self.accelerator
        inputs, targets = unpack(batch, self.tasks)
        with accelerator.accumulate(self._learner):
            total, losses, counts = self._learner(inputs, targets, labelled, self._stop.is_set())
            if len(counts) > len(self.tasks):
                self._stop_agreed = counts[-1] > 0
            self._window.append((losses, counts))
            if self._check_losses(total, losses):
                accelerator.backward(total)
                self._check_gradients(counts)
            if not accelerator.sync_gradients:
                return False
            if self._spoiled is None:
                self._update()
            else:
                self.optimizer.zero_grad()
                self._spoiled = None
        return True

    def _update(self) -> None:
        if self.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self._learner.parameters(), self.clip_norm)
        self.optimizer.step()
        stepwise = self.schedulers and self.scheduler_every == "step"
        if stepwise and not self.accelerator.optimizer_step_was_skipped:
            self._step_schedulers()
        self.optimizer.zero_grad()
        self._skips = 0

    def _check_losses(self, total: Tensor, losses: Sequence[Tensor | float | None]) -> bool:
        """Whether the losses are finite; on several processes, those of all."""
        if self._alone and math.isfinite(total.item()):
            return True
        values = [None if loss is None else float(loss) for loss in losses]
        wrong = [
            task.name
            for task, value in zip(self.tasks, values, strict=True)
            if value is not None and not math.isfinite(value)
        ]
        if not self._alone and not wrong:
            return True
        named = ", ".join(f"{name!r}" for name in wrong) or "the method's weighting"
        self._nonfinite(f"the loss of {named} is not finite")
        return False

    def _check_gradients(self, counts: Sequence[float]) -> None:
        if self.accelerator.scaler is not None:
            return  # the scaler skips the step by itself
        finite = self._merged_finite()
        if finite is None:
            grads = [p.grad for p in self._learner.parameters() if p.grad is not None]
            finite = not grads or math.isfinite(torch.nn.utils.get_total_norm(grads))
        if finite:
            return
        stats = self.method.stats
        wrong = []
        if stats is not None:
            wrong = [
                task.name
                for task, count, value in zip(self.tasks, counts, stats.norms.tolist(), strict=False)
                if count and not math.isfinite(value)
            ]
        named = ", ".join(f"{name!r}" for name in wrong) or "the merged tasks"
        self._nonfinite(f"the gradient of {named} is not finite")

    def _merged_finite(self) -> bool | None:
        """Whether the gradients merged in this backward are finite; None without a merge."""
        gram = self.method.last_gram
        if gram is None or gram is self._gram:
            return None  # a plain sum that was not forked, or a compiled method
        self._gram = gram
        return bool(all_finite(gram))

    def _nonfinite(self, what: str) -> None:
        where = f"{what} at step {self.step + 1}, batch {self._position.batch + 1} of the epoch"
        if self.on_nonfinite == "raise":
            raise NonFiniteError(
                f"{where}; lower the learning rate, clip the gradient (clip_norm), look at the data, "
                "or leave such steps out with on_nonfinite='skip'"
            )
        self._spoiled = what
        self._skips += 1
        if self._log is not None:
            self._log.write("skipped", self.step + 1, reason=what)
        if self._skips >= _MOST_SKIPS:
            raise NonFiniteError(
                f"{where}; {self._skips} steps in a row were left out, so training stops"
            )

    def _after_step(self, progress: Progress) -> None:
        if self.monitor is not None:
            self.monitor.observe(self.step)
        if progress.due():
            losses, _ = self._mean_losses()
            conflict = None if self.monitor is None else self.monitor.conflict
            progress.show(self.step, self.epoch, losses, conflict, self._last_validation)
        if self.step % self.log_every == 0:
            self._log_training()

    def _close_epoch(self) -> None:
        here = self._position
        here.epoch += 1
        here.batch = 0
        if self.scheduler_every == "epoch":
            self._step_schedulers()

    def _step_schedulers(self) -> None:
        for scheduler in self.schedulers:
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()

    # Validation and the best checkpoint

    def _validate(self, validating: Any) -> None:
        if validating is None:
            return
        here = self._position
        figures = self.evaluate(validating)
        self._last_validation = figures
        reached = score(figures, self.tasks, self.best_by, here.first)
        is_best = here.best is None or reached > here.best
        if is_best:
            here.best, here.best_step, here.without_progress = reached, here.step, 0
        else:
            here.without_progress += 1
            here.done = self.early_stop is not None and here.without_progress >= self.early_stop
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(reached)
        if self._log is not None:
            self._log.write(
                "validation", here.step, epoch=here.epoch, score=reached, best=is_best, tasks=figures
            )
        self._track({f"validation/{t}/{m}": v for t, row in figures.items() for m, v in row.items()})

    def _finish(self, validating: Any) -> None:
        here = self._position
        if self._window:
            self._log_training()
        if self._checkpoints is None:
            return
        newest = self._checkpoints.paths()
        if not newest or f"{here.step:09d}" not in newest[-1].name:
            if here.step and here.batch:  # stopped within an epoch, at the last step
                self._validate(validating)
            self._save()
        if validating is None:
            self._save(best=True)

    # Checkpoints

    def _save(self, *, best: bool | None = None) -> Path | None:
        """Write a checkpoint; every process must call this."""
        if self._checkpoints is None:
            return None
        here = self._position
        state = {
            "position": asdict(here),
            "tasks": [task.name for task in self.tasks],
            "method": str(self.method),
            "seed": self.seed,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
            "losses": self._raw.losses.state_dict(),
            "rng": gather(read_rng(), self.accelerator),
            **read_weights(self._raw.model, self.optimizer, self.accelerator),
        }
        path = None
        if self.accelerator.is_main_process:
            is_best = here.best_step == here.step if best is None else best
            path = self._checkpoints.save(here.step, state, best=is_best)
        self.accelerator.wait_for_everyone()
        return path or self._checkpoints.directory / f"step-{here.step:09d}.pt"

    def _resume(self, resume: str | os.PathLike[str] | None) -> bool:
        if resume is None:
            if self._checkpoints is not None and self.step == 0:
                old = self._checkpoints.paths()
                if old:
                    raise UsageError(
                        f"{self.output} holds a run already ({old[-1].name}); resume it with "
                        "resume='auto', or choose another output folder"
                    )
            return self.step > 0
        path: str | None = None
        if str(resume) == "auto":
            if self._checkpoints is None:
                raise UsageError("resume='auto' needs an output folder: pass output=... to Trainer")
            if self.accelerator.is_main_process:
                self._checkpoints.clean()
                found = self._checkpoints.latest()
                path = None if found is None else str(found[0])
            path = broadcast(path, self.accelerator)
            if path is None:
                return False
        else:
            path = str(resume)
        self._restore(load_checkpoint(path), path)
        return True

    def _restore(self, state: Mapping[str, Any], path: str) -> None:
        names = [task.name for task in self.tasks]
        for what, saved, now in (
            ("tasks", state["tasks"], names),
            ("method", state["method"], str(self.method)),
            ("seed", state["seed"], self.seed),
        ):
            if saved != now:
                raise CheckpointError(
                    f"{path} is of a run with {what} {saved!r}, this one has {now!r}; "
                    "resume with the same, or start anew in another folder"
                )
        try:
            write_weights(self._raw.model, state, self.accelerator)
            write_optimizer(self._raw.model, self.optimizer, state, self.accelerator)
            self._raw.losses.load_state_dict(state["losses"])
            for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
                scheduler.load_state_dict(saved)
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path} does not fit this model or optimizer: {error}; build them as in the run that "
                "wrote it"
            ) from None
        self._position = _Position(**state["position"])
        ranks = state["rng"]
        if self.accelerator.process_index < len(ranks):
            self._saved_rng = ranks[self.accelerator.process_index]
        else:
            self._note(f"{path} was written by {len(ranks)} processes: random numbers start anew here")

    # Logs

    def _start_log(self, resumed: bool) -> None:
        if self.output is None or not self.accelerator.is_main_process:
            return
        if self._own_trackers and not self.accelerator.trackers:
            self.accelerator.init_trackers("tracking")
        self._log = Log(self.output / LOG_NAME, until=self.step if resumed else None)
        if not resumed:
            self._log.write(
                "run",
                0,
                tasks={
                    task.name: {"kind": task.kind, "metrics": task.higher_is_better}
                    for task in self.tasks
                },
                method=str(self.method),
                processes=self.accelerator.num_processes,
                precision=str(self.accelerator.mixed_precision),
                parameters=sum(p.numel() for p in self._raw.parameters()),
            )

    def _note(self, message: str, *, once: bool = True) -> None:
        if not once or not self.accelerator.is_main_process:
            return
        if self._log is not None:
            self._log.write("note", self.step, message=message)
        warnings.warn(message, UserWarning, stacklevel=3)

    def _mean_losses(self) -> tuple[dict[str, float], float]:
        """Losses by task over the labels since the last log line, and how many batches those are."""
        means = {}
        for index, task in enumerate(self.tasks):
            rows = [
                (loss, counts[index])
                for losses, counts in self._window
                if (loss := losses[index]) is not None
            ]
            total = sum(float(count) for _, count in rows)
            if total:
                values = torch.stack([torch.as_tensor(loss).double() for loss, _ in rows]).tolist()
                pairs = zip(values, rows, strict=True)
                means[task.name] = sum(v * float(count) for v, (_, count) in pairs) / total
        return means, len(self._window)

    def _log_training(self) -> None:
        losses, batches = self._mean_losses()
        self._window.clear()
        rates = {
            str(group.get("name", index)): group["lr"]
            for index, group in enumerate(self.optimizer.param_groups)
        }
        if self._log is not None:
            self._log.write(
                "train", self.step, epoch=self.epoch, time=time.time(), losses=losses,
                batches=batches, rates=rates,
            )  # fmt: skip
        values = {f"loss/{name}": value for name, value in losses.items()}
        summary = None if self.monitor is None else self.monitor.summary()
        if summary is not None:
            if self._log is not None:
                self._log.write("monitor", self.step, epoch=self.epoch, **summary)
            values["conflict"] = summary["conflict"]
            for name in ("norms", "weights", "update_cosines", "rotation_angles"):
                values |= {f"{name}/{task}": value for task, value in summary.get(name, {}).items()}
        self._track(values)

    def _track(self, values: Mapping[str, float]) -> None:
        if self.accelerator.trackers:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self.accelerator.log(finite, step=self.step)

    def _shown(self) -> bool:
        shown = self.show_progress
        return bool(self.accelerator.is_main_process and (shown is None or shown)) and (
            shown is True or Progress.on_terminal()
        )

    # Processes and signals

    def _should_stop(self) -> bool:
        """Whether some process was asked to stop; all get the same answer."""
        return self._stop_agreed if self.accelerator.num_processes > 1 else self._stop.is_set()

    def _reached(self, epochs: int | None, steps: int | None) -> bool:
        here = self._position
        return (
            here.done
            or (epochs is not None and here.epoch >= epochs)
            or (steps is not None and here.step >= steps)
        )

    def _total_steps(self, loader: Any, epochs: int | None, steps: int | None) -> int | None:
        if epochs is None:
            return steps
        try:
            whole = epochs * math.ceil(len(loader) / self._accumulate)
        except TypeError:
            return steps
        return whole if steps is None else min(whole, steps)


def _choose(name: str, given: Any, known: Sequence[str]) -> None:
    if given not in known:
        raise unknown_name(f"value of {name}", str(given), known)


def _check_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    task_names(tasks)
    for task in tasks:
        if not isinstance(task, Task):
            raise SpecError(
                f"a Trainer needs Task objects, with losses; {task!r} is only a name. "
                "For example mtlkit.Task.classification('left', classes=10)"
            )
    return tuple(tasks)


def _check_best_by(best_by: str, tasks: Sequence[Task]) -> str:
    known = ["improvement", "loss"]
    for task in tasks:
        known += [f"{task.name}/{metric}" for metric in (*task.higher_is_better, "loss")]
    _choose("best_by", best_by, known)
    return best_by
