"""A thin training loop on Accelerate, which handles devices, processes, precision and accumulation."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import nn
from torch.optim import Optimizer

from mtlkit.config.annotations import Count, Ge, Gt, Le
from mtlkit.config.registry import check_options
from mtlkit.errors import SpecError, UsageError
from mtlkit.tasks import Task
from mtlkit.training.accelerators import (
    Interrupted,
    adapt_accelerator,
    catch_signals,
    is_sharded,
    make_accelerator,
)
from mtlkit.training.checkpoints import write_rng
from mtlkit.training.checks import (
    BestBy,
    check_at_least,
    check_best_by,
    check_single_task,
    check_tasks,
)
from mtlkit.training.evaluation import evaluate, mean_metrics, percent_behind, score
from mtlkit.training.loaders import Batches, prepare_loader
from mtlkit.training.optimizers import Schedulers, describe_groups
from mtlkit.training.own_samples import PerTask
from mtlkit.training.run_log import Monitor, Progress, RunLog
from mtlkit.training.state import FitResult, Position, Saver
from mtlkit.training.step import LossModule, TrainStep, check_optimizer

_MOST_UNREAD = 1000  # batches whose losses stay on the device, in runs that rarely log


class Trainer:
    """Train a network on several tasks.

    Args:
        model: a module whose forward returns predictions by task name, with its method in
            ``model.method`` (see :func:`mtlkit.create_architecture`); without one, losses are summed.
        tasks: one :class:`~mtlkit.Task` for each task of the method.
        optimizer: optimizer of the parameters of ``model``; see :func:`mtlkit.param_groups`.
        accelerator: an ``accelerate.Accelerator``; None creates one from ``mixed_precision`` and
            ``gradient_accumulation_steps``.
        scheduler: one or several learning-rate schedulers, stepped by ``scheduler_every``;
            ``ReduceLROnPlateau`` gets the validation score and needs ``mode="max"``.
        scheduler_every: ``"step"`` or ``"epoch"``.
        output: folder for log and checkpoints; None writes nothing.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        gradient_accumulation_steps: batches per optimizer step.
        max_grad_norm: largest norm of the gradient, for clipping.
        clip: parameters whose gradient is clipped: ``"all"``, or those ``"shared"`` by the tasks.
        forward_per_task: run one forward pass per task, over its labeled samples: ``"always"``,
            ``"never"``, or ``"auto"`` for networks without BatchNorm and batches in which no sample has
            labels of two tasks. Steps with ``wrt=parameters`` are then up to K times faster; other
            methods ignore it.
        on_nonfinite: reaction to a loss or gradient that is not finite. ``"raise"`` stops with an error
            that names task and step, at the next log, validation or checkpoint; ``"skip"`` skips the
            step, which makes every step wait for the device.
        eval_steps: steps between validations; None validates after every epoch.
        save_steps: steps between checkpoints; None saves with every validation or epoch.
        save_total_limit: number of recent checkpoints to keep, in addition to the best.
        best_by: criterion of the best validation: ``"improvement"``, the mean over tasks of the relative
            gain in their main metrics since the first validation; ``"loss"``, the sum of the losses;
            ``"task/metric"``; ``"mean/metric"`` over tasks; or ``{"task/metric": value}``, a single-task
            row for Delta m.
        early_stopping_patience: stop after this many validations without improvement.
        single_task_metrics: validation metrics of single-task models, ``{"depth": {"mae": 0.6}}``, for
            methods that favor tasks that are worse (``pivrg``).
        logging_steps: steps between lines of the log.
        monitor_steps: steps between samples of the method's statistics; 0 for none.
        log_with: Accelerate's trackers, such as ``"tensorboard"``, or several.
        seed: seed of the order of the samples.
        progress: whether to show a progress bar; None shows one on a terminal, and lines elsewhere.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.regression("sum"), mtlkit.Task.binary("sign")]
    >>> model = mtlkit.create_architecture("mmoe(input_size=4)", tasks, method="pcgrad")
    >>> optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=0.01))
    >>> x = torch.randn(64, 4)
    >>> targets = {"sum": x.sum(dim=1, keepdim=True), "sign": (x[:, :1] > 0).float()}
    >>> samples = [(x[i], {name: target[i] for name, target in targets.items()}) for i in range(64)]
    >>> loader = torch.utils.data.DataLoader(samples, batch_size=16, shuffle=True)
    >>> trainer = mtlkit.Trainer(model, tasks, optimizer, progress=False)
    >>> trainer.fit(loader, epochs=2).step
    8
    >>> sorted(trainer.evaluate(loader)["sum"])
    ['loss', 'mae', 'mse', 'r2', 'rmse']
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
        mixed_precision: Literal["no", "bf16", "fp16"] = "no",
        gradient_accumulation_steps: Count = 1,
        max_grad_norm: Annotated[float, Gt(0), Le(math.inf)] | None = None,
        clip: Literal["all", "shared"] = "all",
        forward_per_task: PerTask = "auto",
        on_nonfinite: Literal["raise", "skip"] = "raise",
        eval_steps: Count | None = None,
        save_steps: Count | None = None,
        save_total_limit: Count = 2,
        best_by: BestBy = "improvement",
        early_stopping_patience: Count | None = None,
        single_task_metrics: Mapping[str, Mapping[str, float]] | None = None,
        logging_steps: Count = 50,
        monitor_steps: Annotated[int, Ge(0)] = 10,
        log_with: str | Sequence[str] = (),
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        check_options(Trainer, locals())
        self.tasks = check_tasks(tasks)
        self.output = None if output is None else Path(output)
        if accelerator is not None and log_with:
            raise SpecError(f"log_with is {log_with!r}: give the trackers to the accelerator instead")
        trackers = [log_with] if isinstance(log_with, str) else log_with
        self.accelerator = accelerator or make_accelerator(
            mixed_precision, gradient_accumulation_steps, trackers, self.output
        )
        adapt_accelerator(self.accelerator, mixed_precision, gradient_accumulation_steps)
        self._schedulers = Schedulers(scheduler, scheduler_every)
        self.eval_steps, self.save_steps, self.logging_steps = eval_steps, save_steps, logging_steps
        self.best_by = check_best_by(best_by, self.tasks)
        self.early_stopping_patience = early_stopping_patience
        self.single_task_metrics = check_single_task(single_task_metrics or {}, self.tasks)
        self.seed, self.show_progress = seed, progress
        check_optimizer(optimizer, model)
        self.model = model
        module = LossModule(model, self.tasks, self.accelerator)
        self.method = module.method
        self._prepared, self.optimizer = self.accelerator.prepare(module, optimizer)
        self._module: LossModule = self.accelerator.unwrap_model(self._prepared)
        self.monitor = Monitor(self.method, monitor_steps) if monitor_steps else None
        self._saver = Saver(
            self.output, save_total_limit, self._module, self.optimizer, self._schedulers.all, seed
        )
        self._log = RunLog(self.output, self.accelerator, start_trackers=bool(log_with))
        self._position = Position()
        self._saved_rng: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._step = TrainStep(
            self._prepared,
            self.optimizer,
            self.accelerator,
            self._stop,
            on_nonfinite=on_nonfinite,
            max_grad_norm=max_grad_norm,
            forward_per_task=forward_per_task,
            clip=clip,
        )
        self._readings, self._counts = self._step.readings, self._step.counts

    @property
    def step(self) -> int:
        """Number of optimizer steps so far."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """Number of complete epochs so far."""
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
        """Train for ``epochs`` or ``steps``, counted from the start of the run.

        Args:
            train: loader of ``(inputs, {task: target})``, with the batches of all processes together; or
                ``{task: loader}``, see :func:`mtlkit.data.mix`.
            validation: loader that selects the best checkpoint; never the test set.
            epochs: passes over ``train``.
            steps: optimizer steps; with both, whichever comes first.
            resume: ``"auto"`` for the newest valid checkpoint in the output folder, if there is one; or
                the path of a checkpoint.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite, with ``on_nonfinite="raise"``.
            Interrupted: after Ctrl-C or SIGTERM; a checkpoint has been written.
        """
        if epochs is None and steps is None:
            raise SpecError("give fit() epochs or steps")
        check_at_least(0, epochs=epochs, steps=steps)
        run = (self.tasks, self.accelerator, self.seed)
        batches = prepare_loader(train, *run, training=True, own_samples=self._step.own_samples)
        validating = None if validation is None else prepare_loader(validation, *run)
        resumed = self._resume(resume)
        self._log.open(
            self.tasks,
            until=self.step if resumed else None,
            method=str(self.method),
            processes=self._counts.processes,
            mixed_precision=str(self.accelerator.mixed_precision),
            parameters=sum(p.numel() for p in self._module.parameters()),
            optimizer=describe_groups(self.optimizer.param_groups),
        )
        if validating is None and self.output is not None and not resumed:
            self._log.note("no validation set: the last checkpoint counts as the best", self.step)
        # all accelerators of a process share this setting
        self.accelerator.gradient_accumulation_steps = self._step.batches_per_step
        self._counts.start()
        ends = [] if steps is None else [steps]
        with suppress(TypeError):  # a stream has no length
            self.method.set_epoch_length(max(1, len(batches)))
            if epochs is not None:
                ends.append(epochs * math.ceil(len(batches) / self._step.batches_per_step))
        here = self._position
        shown = Progress.wanted(self.show_progress) if self.accelerator.is_main_process else ""
        progress = Progress(shown, min(ends, default=None))
        try:
            with catch_signals(self._stop), progress:
                progress.advance(self.step)
                while not here.reached(epochs, steps):
                    self._train_epoch(batches, validating, steps, progress)
                    if self._counts.should_stop and not here.reached(epochs, steps):
                        raise Interrupted(self.step, self._save())
                self._finish(batches, validating)
        finally:
            self._log.close()
        return here.result(self._saver.best)

    def evaluate(self, loader: Any) -> dict[str, dict[str, float]]:
        """Return loss and metrics of every task over all samples of ``loader``; NaN without labels."""
        batches = prepare_loader(loader, self.tasks, self.accelerator, self.seed)
        # DDP's forward must be called equally often by all processes; FSDP's cannot be bypassed
        network = self._prepared if is_sharded(self.accelerator) else self._module
        return evaluate(network, self.tasks, batches, self.accelerator)

    def evaluate_last(self, loader: Any, epochs: int) -> dict[str, dict[str, float]]:
        """Return the mean of the metrics after each of the last epochs, from their checkpoints.

        Papers on NYUv2 and Cityscapes report this mean on the test set. The model keeps the weights of
        the last epoch.
        """
        batches = prepare_loader(loader, self.tasks, self.accelerator, self.seed)
        return mean_metrics([self.evaluate(batches) for _ in self._saver.load_last(epochs)])

    def load_best(self) -> bool:
        """Load the best weights into the model; return False if there are none."""
        return self._saver.load_best()

    def _train_epoch(
        self, batches: Batches, validating: Batches | None, steps: int | None, progress: Progress
    ) -> None:
        here = self._position
        begun, whole = here.step, here.batch == 0
        self._prepared.train()
        saved = self._saved_rng
        with closing(batches.start(here.epoch, here.batch)) as epoch:
            for batch in epoch:
                if saved is not None:  # reading the first batch drew random numbers
                    write_rng(saved)
                    saved = self._saved_rng = None
                try:
                    outcome = self._step.take(batch, here.step + 1, here.batch)
                except Exception:
                    if self._counts.processes == 1:  # an earlier step may not be finite
                        self._readings.read()
                    raise
                here.batch += 1
                if (advice := batches.advice(self.method)) is not None:
                    self._log.note(advice, self.step)
                if outcome == "unlabeled" and here.step == 0:
                    self._log.write("unlabeled", 0)
                if outcome in ("accumulated", "unlabeled"):
                    continue
                here.step += 1
                if outcome == "updated":
                    self._schedulers.after("step")
                if outcome == "skipped":
                    self._log.write("skipped", here.step, reason=self._step.reason)
                self._after_step(progress)
                last = steps is not None and here.step >= steps
                validates, saves = here.is_due(self.eval_steps), here.is_due(self.save_steps)
                stops = self._counts.should_stop
                if self.accelerator.gradient_state.end_of_dataloader:
                    continue  # handled after the loop
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
        if here.batch == 0:
            raise UsageError("the training loader has no batches; is the data set empty?")
        if whole and here.step == begun and outcome == "unlabeled":
            names = ", ".join(task.name for task in self.tasks)
            raise UsageError(f"no batch of the epoch has a label of {names}: there is nothing to learn")
        here.epoch, here.batch = here.epoch + 1, 0
        self._schedulers.after("epoch")
        if self.eval_steps is None or here.is_due(self.eval_steps):
            self._validate(validating)
        self._readings.read()
        losses = self._readings.epoch_losses
        progress.end_epoch(here.step, here.epoch, losses.means(), here.metrics)
        losses.reset()
        self._warn_of_unlabeled(batches)
        if self.save_steps is None or here.is_due(self.save_steps) or validating is not None:
            self._save()

    def _after_step(self, progress: Progress) -> None:
        if self.monitor is not None:
            self.monitor.observe(self.step)
        if self._position.is_due(self.logging_steps):
            self._log_training()
        elif len(self._readings) >= _MOST_UNREAD:
            self._readings.read()
        if progress.due():
            if self._counts.processes == 1:  # several processes must read at the same step
                self._readings.read()
            conflict = None if self.monitor is None else self.monitor.conflict
            losses = self._readings.losses.means()
            progress.show(self.step, self.epoch, losses, conflict, self._position.metrics)

    def _log_training(self) -> None:
        self._readings.read()
        summary = None if self.monitor is None else self.monitor.summary()
        losses = self._readings.losses
        means, batches = losses.means(), losses.batches
        self._log.training(self.step, self.epoch, means, batches, self.optimizer, summary)
        losses.reset()

    def _validate(self, validating: Batches | None) -> None:
        self._readings.read()
        if validating is None:
            return
        here = self._position
        metrics = self.evaluate(validating)
        here.validated, here.metrics = here.step, metrics
        reached = score(metrics, self.tasks, self.best_by, here.first)
        is_best = here.judge(reached, self.early_stopping_patience)
        self._schedulers.after_validation(reached)
        if self.single_task_metrics:
            behind = percent_behind(metrics, self.tasks, self.single_task_metrics)
            scored: Any = [part for part in self.method.modules() if hasattr(part, "set_scores")]
            for part in scored:
                part.set_scores(behind)
        self._log.validation(here.step, here.epoch, reached, is_best, metrics)

    def _finish(self, batches: Batches, validating: Batches | None) -> None:
        here = self._position
        self._readings.read()
        self._warn_of_unlabeled(batches)
        if self._readings.losses.batches:
            self._log_training()
        unjudged = here.validated != here.step
        if unjudged:
            self._validate(validating)
        if self.output is not None and (unjudged or not self._saver.holds(here.step)):
            self._save(best=True if validating is None else None)

    def _warn_of_unlabeled(self, batches: Batches) -> None:
        """Warn, at the end of the first epoch, of tasks without any label."""
        if note := self._counts.describe_unlabeled(batches.target_names):
            self._log.note(note, self.step)

    def _save(self, *, best: bool | None = None) -> Path | None:
        """Write a checkpoint; every process must call this."""
        self._readings.read()
        return self._saver.save(self._position, best=best)

    def _resume(self, resume: str | os.PathLike[str] | None) -> bool:
        """Restore a checkpoint, if any; return whether this continues a run."""
        found = self._saver.resume(resume, self.step)
        if found is None:
            return resume is None and self.step > 0
        self._position, self._saved_rng, writers = found
        here = self._position
        here.done = here.gave_up(self.early_stopping_patience)
        now = self._counts.processes
        if writers != now:
            self._log.note(
                f"the checkpoint is of {writers} process(es), and this run has {now}: random numbers, "
                "such as those of dropout, are not those of an uninterrupted run",
                self.step,
            )
        return True
