"""A thin training loop on Accelerate, which does devices, processes, precision and accumulation."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mtlkit.errors import NonFiniteError, SpecError, UsageError, unknown_name
from mtlkit.tasks import Task, task_names
from mtlkit.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    load_checkpoint,
    read_rng,
    write_rng,
)
from mtlkit.training.loaders import ShardedBatches, prepare_loader
from mtlkit.training.logs import LOG_NAME, Log
from mtlkit.training.monitor import Monitor
from mtlkit.training.progress import Progress
from mtlkit.weighting.base import GradientAggregator
from mtlkit.weighting.create import create_method

__all__ = ["FitResult", "Interrupted", "Trainer"]

_MOST_SKIPS = 50


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop (Ctrl-C, SIGTERM) and did, after the step it was in.

    Attributes:
        step: steps taken.
        checkpoint: what was saved; None for a run without an output folder.
    """

    def __init__(self, step: int, checkpoint: Path | None) -> None:
        saved = f"saved as {checkpoint}" if checkpoint else "nothing was saved: no output folder"
        super().__init__(f"stopped after step {step}; {saved}")
        self.step = step
        self.checkpoint = checkpoint


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
            first validation in their main metrics; or ``"task/metric"``.
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
        self.accelerator = accelerator or _make_accelerator(precision, accumulate, trackers, self.output)
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
        learner = _Learner(model, self.tasks, self.accelerator)
        self.method = learner.method
        self._accumulate = int(self.accelerator.gradient_accumulation_steps)
        _find_unused_parameters(self.accelerator)
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
        self._merges = int(self.method._steps)
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
        progress = Progress(self._shown(), self._total_steps(loader, epochs, steps))
        try:
            with self._catch_signals(), progress:
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

    @torch.no_grad()
    def evaluate(self, loader: Any) -> dict[str, dict[str, float]]:
        """Loss and metrics of every task over all samples of ``loader``; NaN without any label."""
        loader = prepare_loader(loader, self.accelerator, self.seed)
        device = self.accelerator.device
        # torchmetrics' sums are float64, which Apple's GPUs lack
        where = torch.device("cpu") if device.type == "mps" else device
        metrics = {task.name: task.make_metrics(where) for task in self.tasks}
        sums = torch.zeros(len(self.tasks), 2, dtype=torch.float64)
        sharded = self.accelerator.distributed_type.name == "FSDP"
        network = self._learner if sharded else self._raw
        rng = read_rng()
        was_training = self._learner.training
        self._learner.eval()
        try:
            for number, batch in enumerate(loader):
                inputs, targets = self._unpack(batch)
                if _is_padded(loader, number):
                    targets = {}
                predictions = network(inputs)
                for index, task in enumerate(self.tasks):
                    prediction = _prediction(predictions, task.name)
                    target = targets.get(task.name)
                    loss, count = task.measure(prediction, target)
                    if loss is not None:
                        sums[index] += torch.tensor([float(loss) * count, count], dtype=torch.float64)
                        task.update(metrics[task.name], prediction.to(where), _move(target, where))
        finally:
            self._learner.train(was_training)
            write_rng(rng)
        if self.accelerator.num_processes > 1:
            sums = sums.to(device)
            dist.all_reduce(sums)
            sums = sums.cpu()
        figures: dict[str, dict[str, float]] = {}
        for index, task in enumerate(self.tasks):
            total, count = sums[index].tolist()
            with warnings.catch_warnings():
                # "compute before update" on a process that had no label
                warnings.simplefilter("ignore", UserWarning)
                values = task.compute(metrics[task.name])
            if count == 0:
                values = dict.fromkeys(values, math.nan)
            figures[task.name] = {"loss": total / count if count else math.nan, **values}
        return figures

    def load_best(self) -> bool:
        """Give the model the weights of the best checkpoint; False where there is none."""
        if self._checkpoints is None or not self._checkpoints.best.exists():
            return False
        self._load_model(load_checkpoint(self._checkpoints.best))
        return True

    # One epoch, one step

    def _train_epoch(self, loader: Any, validating: Any, steps: int | None, progress: Progress) -> None:
        here = self._position
        self._learner.train()
        batches = _open(loader, here.epoch, here.batch, self.accelerator)
        saved = self._saved_rng
        ended = False
        try:
            for batch in batches:
                if saved is not None:  # what reading the first batch drew is put back
                    write_rng(saved)
                    saved = self._saved_rng = None
                stepped = self._train_batch(batch, not _is_padded(loader, here.batch))
                here.batch += 1
                if not stepped:
                    continue
                here.step += 1
                self._after_step(progress)
                last = steps is not None and here.step >= steps
                ended = bool(self.accelerator.gradient_state.end_of_dataloader)
                if not ended and not last:
                    if self.validate_every and here.step % self.validate_every == 0:
                        self._validate(validating)
                        self._save()
                    elif self.checkpoint_every and here.step % self.checkpoint_every == 0:
                        self._save()
                    if here.done:
                        return
                    if self._should_stop():
                        raise Interrupted(here.step, self._save())
                if last and not ended:
                    return
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

    def _train_batch(self, batch: Any, labelled: bool) -> bool:
        """Whether the optimizer's turn came."""
        accelerator = self.accelerator
        inputs, targets = self._unpack(batch)
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
        if self.scheduler_every == "step" and not self.accelerator.optimizer_step_was_skipped:
            self._step_schedulers()
        self.optimizer.zero_grad()
        self._skips = 0

    def _check_losses(self, total: Tensor, losses: Sequence[Tensor | float | None]) -> bool:
        """Whether the losses are finite; on several processes, those of all."""
        if isinstance(total, Tensor) and self.accelerator.num_processes == 1:
            if math.isfinite(total.detach()):
                return True
        values = [None if loss is None else float(loss) for loss in losses]
        wrong = [
            task.name
            for task, value in zip(self.tasks, values, strict=True)
            if value is not None and not math.isfinite(value)
        ]
        if self.accelerator.num_processes > 1 and not wrong:
            return True
        named = ", ".join(f"{name!r}" for name in wrong) or "the method's weighting"
        self._nonfinite(f"the loss of {named} is not finite")
        return False

    def _check_gradients(self, counts: Sequence[float]) -> None:
        if self.accelerator.scaler is not None:
            return  # the scaler skips the step by itself
        norm = self._merged_norm()
        if norm is None:
            grads = [p.grad for p in self._learner.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        if math.isfinite(norm):
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

    def _merged_norm(self) -> float | None:
        """Squared norm of what the method merged in this backward; None if it did not merge."""
        merges = int(self.method._steps)
        if merges == self._merges:
            return None
        self._merges = merges
        return float(self.method._last_products[-1])

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
        score = self._score(figures)
        is_best = here.best is None or score > here.best
        if is_best:
            here.best, here.best_step, here.without_progress = score, here.step, 0
        else:
            here.without_progress += 1
            here.done = self.early_stop is not None and here.without_progress >= self.early_stop
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(score)
        if self._log is not None:
            self._log.write(
                "validation", here.step, epoch=here.epoch, score=score, best=is_best, tasks=figures
            )
        self._track({f"validation/{t}/{m}": v for t, row in figures.items() for m, v in row.items()})

    def _score(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """One number for a validation, the higher the better."""
        if self.best_by != "improvement":
            task, metric = self.best_by.rsplit("/", 1)
            better = next(t for t in self.tasks if t.name == task).higher_is_better.get(metric, False)
            value = figures[task][metric]
            return (value if better else -value) if math.isfinite(value) else -math.inf
        first = self._position.first
        gains = []
        for task_ in self.tasks:
            metric = task_.main_metric
            now = figures[task_.name][metric]
            if math.isnan(now):
                continue
            start = first.setdefault(task_.name, now)
            # over the mean size of both, so that a first value near zero cannot decide alone
            size = abs(now) + abs(start)
            gain = 0.0 if size == 0 else (now - start) / size
            gains.append(gain if task_.higher_is_better.get(metric, False) else -gain)
        return sum(gains) / len(gains) if gains else -math.inf

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
            "rng": self._gather(read_rng()),
            **self._model_state(),
        }
        path = None
        if self.accelerator.is_main_process:
            is_best = here.best_step == here.step if best is None else best
            path = self._checkpoints.save(here.step, state, best=is_best)
        self.accelerator.wait_for_everyone()
        return path or self._checkpoints.directory / f"step-{here.step:09d}.pt"

    def _model_state(self) -> dict[str, Any]:
        if self.accelerator.distributed_type.name == "FSDP":
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            model, optimizer = get_state_dict(self._raw.model, self.optimizer.optimizer, options=options)
            return {"model": dict(model), "optimizer": optimizer, "sharded": True}
        return {
            "model": self._raw.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sharded": False,
        }

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
            path = self._broadcast(path)
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
            self._load_model(state)
            if not state["sharded"]:
                self.optimizer.load_state_dict(state["optimizer"])
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

    def _load_model(self, state: Mapping[str, Any]) -> None:
        if state["sharded"] or self.accelerator.distributed_type.name == "FSDP":
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

            set_state_dict(
                self._raw.model,
                self.optimizer.optimizer,
                model_state_dict=dict(state["model"]),
                optim_state_dict=state["optimizer"],
                options=StateDictOptions(full_state_dict=True),
            )
        else:
            self._raw.model.load_state_dict(state["model"])

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

    def _unpack(self, batch: Any) -> tuple[Any, Mapping[str, Tensor | None]]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UsageError(
                f"a batch must be (inputs, targets), not {type(batch).__name__}; targets by task name"
            )
        inputs, targets = batch
        if isinstance(targets, Mapping):
            return inputs, targets
        if isinstance(targets, Tensor):
            targets = [targets]
        if isinstance(targets, tuple | list) and len(targets) == len(self.tasks):
            return inputs, {task.name: t for task, t in zip(self.tasks, targets, strict=True)}
        raise UsageError(
            f"targets must be a mapping by task name, or one per task in the order "
            f"{', '.join(task.name for task in self.tasks)}"
        )

    def _gather(self, thing: Any) -> list[Any]:
        if self.accelerator.num_processes == 1:
            return [thing]
        gathered: list[Any] = [None] * self.accelerator.num_processes
        dist.all_gather_object(gathered, thing)
        return gathered

    def _broadcast(self, thing: Any) -> Any:
        if self.accelerator.num_processes == 1:
            return thing
        holder = [thing]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def _should_stop(self) -> bool:
        """Whether some process was asked to stop; all get the same answer."""
        return self._stop_agreed if self.accelerator.num_processes > 1 else self._stop.is_set()

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        """Finish the step on the first Ctrl-C or SIGTERM; stop at once on the second."""
        self._stop.clear()
        self._stop_agreed = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old: dict[int, Any] = {}

        def request(number: int, frame: Any) -> None:
            self._stop.set()
            for each, handler in old.items():
                signal.signal(each, handler)

        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, request)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

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


class _Learner(nn.Module):
    """Model, losses and method in one forward pass, so that DDP sees all that the loss is made of."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], accelerator: Any) -> None:
        super().__init__()
        self.model = model
        self.tasks = tuple(tasks)
        self.losses = nn.ModuleList(t.loss for t in tasks if isinstance(t.loss, nn.Module))
        self.accelerator = accelerator
        method = getattr(model, "method", None)
        if method is not None and not isinstance(method, GradientAggregator):
            raise SpecError(f"model.method must come from mtlkit.create_method, not {method!r}")
        names = task_names(tasks)
        if method is not None and set(method.tasks) != set(names):
            raise SpecError(
                f"the method knows the tasks {', '.join(method.tasks)}; given are {', '.join(names)}"
            )
        self.own_method = create_method("sum", names) if method is None else None
        self._auxiliary: Callable[[], Tensor | None] | None = getattr(model, "auxiliary_loss", None)

    @property
    def method(self) -> GradientAggregator:
        return self.own_method or self.model.method  # type: ignore[return-value]

    def forward(
        self,
        inputs: Any,
        targets: Mapping[str, Tensor | None] | None = None,
        labelled: bool = True,
        stop: bool = False,
    ) -> Any:
        """Predictions; or with targets (total, losses, numbers of labels).

        On several processes losses and numbers are those of the whole batch; the last number counts
        the processes that were asked to stop.
        """
        predictions = self.model(inputs)
        if targets is None:
            return predictions
        with self._full_precision(predictions):
            measured = [
                task.measure(
                    _prediction(predictions, task.name, self.accelerator), targets.get(task.name)
                )
                if labelled
                else (None, 0)
                for task in self.tasks
            ]
            local = [loss for loss, _ in measured]
            counts: Sequence[float] = [count for _, count in measured]
            report: Sequence[Tensor | float | None]
            report = [None if loss is None else loss.detach() for loss in local]
            if self.accelerator.num_processes > 1:
                local, report, counts = self._share(local, counts, stop)
            names = (task.name for task in self.tasks)
            total = self.method.total(dict(zip(names, local, strict=True)))
            auxiliary = None if self._auxiliary is None else self._auxiliary()
            if auxiliary is not None:
                total = total + auxiliary
        return total, report, counts

    def _share(
        self, losses: list[Tensor | None], counts: Sequence[float], stop: bool
    ) -> tuple[list[Tensor | None], list[float | None], list[float]]:
        """Scale the losses so that their mean over the processes is the mean over all labels."""
        world = self.accelerator.num_processes
        device = self.accelerator.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        message = torch.zeros(2, len(losses) + 1, dtype=dtype, device=device)
        message[0] = torch.tensor([*counts, float(stop)], dtype=dtype)
        for index, loss in enumerate(losses):
            if loss is not None:
                message[1, index] = loss.detach() * counts[index]
        own = message[0].clone()
        dist.all_reduce(message)
        everywhere, sums = message.tolist()
        factors = own * world / message[0].clamp(min=1)
        scaled = [
            None if loss is None else loss * factors[index].to(loss.dtype)
            for index, loss in enumerate(losses)
        ]
        report = [
            total / count if count else None for total, count in zip(sums, everywhere, strict=True)
        ]
        return scaled, report[:-1], everywhere

    def _full_precision(self, predictions: Any) -> contextlib.AbstractContextManager[Any]:
        """Losses in float32, whatever the network runs in."""
        if self.accelerator.mixed_precision == "no":
            return contextlib.nullcontext()
        return torch.autocast(self.accelerator.device.type, enabled=False)


def _prediction(predictions: Any, name: str, accelerator: Any = None) -> Tensor:
    if not isinstance(predictions, Mapping):
        raise UsageError(
            f"the model must return predictions by task name, not {type(predictions).__name__}"
        )
    if name not in predictions:
        raise unknown_name("task in the model's predictions", name, map(str, predictions))
    prediction: Tensor = predictions[name]
    if prediction.dtype in (torch.float16, torch.bfloat16):
        return prediction.float()
    return prediction


def _open(loader: Any, epoch: int, batch: int, accelerator: Any) -> Any:
    """The loader at this epoch, without its first ``batch`` batches."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    if batch == 0:
        return loader
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, ShardedBatches):
        sampler.start_at(batch)
        return loader
    if hasattr(loader, "dataset"):
        return accelerator.skip_first_batches(loader, batch)
    import itertools

    return itertools.islice(loader, batch, None)


def _is_padded(loader: Any, number: int) -> bool:
    sampler = getattr(loader, "batch_sampler", None)
    return isinstance(sampler, ShardedBatches) and number in sampler.padded


def _move(target: Tensor | None, device: torch.device) -> Tensor | None:
    return None if target is None else target.to(device)


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
    known = ["improvement"]
    for task in tasks:
        known += [f"{task.name}/{metric}" for metric in (*task.higher_is_better, "loss")]
    _choose("best_by", best_by, known)
    return best_by


def _make_accelerator(
    precision: str, accumulate: int, trackers: Sequence[str], output: Path | None
) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    known = AcceleratorState._shared_state
    if known and known.get("_mixed_precision") not in (None, precision):
        # the precision is process-wide there; an earlier Trainer's must not decide for this one
        AcceleratorState._reset_state(reset_partial_state=False)
    return Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        log_with=list(trackers) or None,
        project_dir=None if output is None else str(output),
    )


def _find_unused_parameters(accelerator: Any) -> None:
    """Let DDP expect heads without a gradient: a process may have no label of a task."""
    from accelerate.utils import DistributedDataParallelKwargs

    if accelerator.distributed_type.name.startswith("MULTI_") and accelerator.ddp_handler is None:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
