"""A training step: predictions, losses, the method's total, the backward pass and the update."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mtlkit.engine.guards.optimizers import check_optimizers
from mtlkit.engine.sharded import is_sharded
from mtlkit.errors import SpecError
from mtlkit.method.create import create_method
from mtlkit.method.dropins import backward
from mtlkit.method.method import Method
from mtlkit.tasks import LabelCount, Task, task_names
from mtlkit.training.accelerators import LabelCounts
from mtlkit.training.checks import (
    check_losses,
    find_method,
    prediction_of,
    shared_parameters,
)
from mtlkit.training.loaders import Batch
from mtlkit.training.own_samples import OwnSamples, PerTask, Rows, count, select
from mtlkit.training.readings import BatchReading, Readings, RunningStatistics, gradients_of

Outcome = Literal["accumulated", "unlabeled", "updated", "skipped", "overflowed"]

_nothing = contextlib.nullcontext()


class TrainStep:
    """Takes training steps: forward and backward of every batch, and the update after the last one.

    Accelerate's ``backward`` and ``step`` search the disk for optional packages and inspect signatures
    every time, a fifth of the time of a small network. Without a gradient scaler, on one process or with
    DDP, they only call torch, so torch is called directly.

    Args:
        prepared: a :class:`LossModule`, prepared by Accelerate.
        optimizer: the optimizer, prepared by Accelerate.
        accelerator: accelerator of the run.
        stop: set if this process was asked to stop.
        on_nonfinite: see :class:`mtlkit.Trainer`, as for the others.
    """

    def __init__(
        self,
        prepared: nn.Module,
        optimizer: Any,
        accelerator: Any,
        stop: threading.Event,
        *,
        on_nonfinite: Literal["raise", "skip"],
        max_grad_norm: float | None,
        forward_per_task: PerTask,
        clip: Literal["all", "shared"] = "all",
    ) -> None:
        module: LossModule = accelerator.unwrap_model(prepared)
        self.prepared, self.optimizer, self.accelerator = prepared, optimizer, accelerator
        self.method = module.method
        self.max_grad_norm = max_grad_norm
        self.batches_per_step = int(accelerator.gradient_accumulation_steps)
        self.reason: str | None = None
        """Why the last step was skipped."""
        self.tasks = [task.name for task in module.tasks]
        self.counts = LabelCounts(self.tasks, accelerator, stop)
        self.readings = Readings(self.tasks, accelerator, on_nonfinite)
        self._statistics = RunningStatistics(module.model, self.method)
        kind = accelerator.distributed_type.name
        self._direct = accelerator.scaler is None and (kind == "NO" or kind.startswith("MULTI_"))
        self._inner = optimizer.optimizer if self._direct else optimizer
        self._accumulates = self.batches_per_step > 1 or not self._direct
        self._parameters = list(prepared.parameters())
        self._clipped = self._parameters if clip == "all" else shared_parameters(module.model)
        self._module = module
        network: Any = getattr(module.model, "architecture", module.model)
        self._heads = None if is_sharded(prepared) else getattr(network, "task_parameters", None)
        self._second_pass = any(part.second_pass for part in module.method.parts)
        self._merges_shards = module.gives_losses = self._needs_passes_by_task()
        self.own_samples = None
        if not self._merges_shards:
            self.own_samples = OwnSamples.wanted(
                forward_per_task, module.model, self.method, module.tasks
            )

    def _needs_passes_by_task(self) -> bool:
        """Return whether FSDP2 shards parameters whose gradients are merged."""
        if not self.method.wrt_parameters or self.method.is_sum or not is_sharded(self.prepared):
            return False
        self.method.set_shared(self.prepared)
        return True

    def take(self, batch: Batch, step: int, number: int) -> Outcome:
        """Train on a batch, the ``number``-th of its epoch from 0, within this optimizer step."""
        own_counts = [float(batch.labels[name].number) for name in self.tasks]
        counts, factors, apart = self.counts.add_up(own_counts, batch.rows is not None)
        # the gradient of one task alone is merged where the features fork
        rows = batch.rows if apart and sum(map(bool, counts)) > 1 else None
        if self.batches_per_step == 1 and not any(counts):
            return "unlabeled"
        if self.readings.skips and number % self.batches_per_step == 0:
            self._statistics.keep()
        with self.accelerator.accumulate(self.prepared) if self._accumulates else _nothing:
            idle = self._idle_parameters(counts)
            total, losses = self.prepared(*batch._replace(rows=rows), factors)
            if self._merges_shards:
                total = self._backward_by_task(total, counts)
            else:
                self._backward(total)
            for parameter in idle:
                if parameter.grad is not None and not parameter.grad.any():
                    parameter.grad = None
            # gradients of parameters are only known after the merge
            merged = not self.method.wrt_parameters or self.accelerator.sync_gradients
            checks = self.readings.checks_gradients and merged
            gradients = gradients_of(self.method, self._parameters) if checks else None
            self.readings.add(
                BatchReading(step, number + 1, total.detach(), losses, own_counts, counts, gradients)
            )
            if self._accumulates and not self.accelerator.sync_gradients:
                return "accumulated"
            self.reason = self.readings.read() if self.readings.skips else None
            if self.reason is None:
                outcome = self._update(number % self.batches_per_step + 1)
                if self._second_pass and outcome == "updated":
                    self._show_again(batch, factors)
            else:
                self._statistics.restore()
                outcome = "skipped"
            self._inner.zero_grad()
        return outcome

    def _idle_parameters(self, counts: Sequence[float]) -> list[nn.Parameter]:
        """Return the parameters without a gradient of the tasks that have no labels on any process.

        A compiled network gives them zeros, and momentum and weight decay would move them.
        """
        if self._heads is None or all(counts):
            return []
        idle = [name for name, number in zip(self.tasks, counts, strict=True) if not number]
        return [p for name in idle for p in self._heads(name) if p.grad is None]

    def _backward(self, total: Tensor) -> None:
        if self._direct:
            (total if self.batches_per_step == 1 else total / self.batches_per_step).backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(total)

    def _backward_by_task(self, losses: Sequence[Tensor | None], counts: Sequence[float]) -> Tensor:
        """Run one backward pass per task on a sharded model, and return the sum of the losses.

        Args:
            losses: one per task, zero if this process has no labels, and an auxiliary loss or None.
            counts: labels of each task on all processes; tasks without any are left out.
        """
        *own, auxiliary = losses
        factor = torch.tensor(1 / self.batches_per_step, device=self.accelerator.device)
        if self.accelerator.scaler is not None:
            factor = self.accelerator.scaler.scale(factor)
        if auxiliary is not None:
            torch.autograd.backward(auxiliary, factor.to(auxiliary), retain_graph=True)
        labeled = {
            name: loss
            for name, loss, count in zip(self.tasks, own, counts, strict=True)
            if count or not any(counts)
        }
        merge = bool(self.accelerator.sync_gradients)
        backward(labeled, self.method, self.prepared, merge=merge, gradient=factor)
        terms = [loss.detach() for loss in losses if loss is not None]
        return sum(terms[1:], terms[0])

    def _update(self, batches: int) -> Outcome:
        # at the end of an epoch there may be fewer batches than the losses were divided by
        if batches < self.batches_per_step:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.batches_per_step / batches)
        if self.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self._clipped, self.max_grad_norm)
        self._inner.step()
        skipped = not self._direct and self.accelerator.optimizer_step_was_skipped
        return "overflowed" if skipped else "updated"

    @torch.no_grad()
    def _show_again(self, batch: Batch, factors: Sequence[float] | None) -> None:
        """Give the method the losses of the batch after the update, for its second pass.

        The forward pass is in training mode, so BatchNorm uses the statistics of the batch. Buffers such
        as its running averages are restored, so that every batch counts once.
        """
        self._statistics.keep()
        with self.accelerator.autocast(), self._module.unforked():
            predictions = self._module.model(batch.inputs)
        losses = self._module.measure(predictions, batch.targets, batch.labels)
        self._statistics.restore()
        self.method.update(dict(zip(self.tasks, scaled(losses, factors), strict=True)))


class LossModule(nn.Module):
    """Model, losses and method in one forward pass, so that DDP sees all inputs of the loss."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], accelerator: Any) -> None:
        super().__init__()
        self.model = model
        self.tasks = tuple(tasks)
        self.losses = nn.ModuleList(t.loss for t in tasks if isinstance(t.loss, nn.Module))
        self.accelerator = accelerator
        self.half_precision = accelerator.mixed_precision != "no"
        method = find_method(model, task_names(tasks))
        self.own_method = create_method("sum", task_names(tasks)) if method is None else None
        self._auxiliary: Callable[[], Tensor | None] | None = getattr(model, "auxiliary_loss", None)
        self._checked = False
        self._has_preferences = getattr(model, "preferences", None) is not None
        self.gives_losses = False
        """Whether the forward returns the losses instead of the total, for a sharded model."""

    @property
    def method(self) -> Method:
        """The model's method, or a plain sum."""
        own = self.own_method
        return self.model.method if own is None else own  # type: ignore[return-value]

    def forward(
        self,
        inputs: Any,
        targets: Mapping[str, Tensor | None] | None = None,
        labels: Mapping[str, LabelCount] | None = None,
        rows: Rows | None = None,
        factors: Sequence[float] | None = None,
    ) -> Any:
        """Return the predictions; with targets, the total and the tasks' losses.

        Args:
            inputs: of the model.
            targets: by task name.
            labels: of the targets, by task name.
            rows: samples of each task, for one forward pass per task; None for one pass.
            factors: for each task's loss in the total, so that on several processes the mean over the
                processes is the mean over all labels; None for one process.
        """
        if targets is None or labels is None:
            return self.model(inputs)
        # before the forward pass, whose weights depend on it
        weights = self.model.draw_preference() if self.training and self._has_preferences else None  # type: ignore[operator]
        predictions: Any = None
        if rows is None:
            predictions = self.model(inputs)
            losses, auxiliary = self.measure(predictions, targets, labels), self._take_auxiliary()
        else:
            losses, auxiliary = self._measure_apart(inputs, targets, labels, rows)
        with self._full_precision():
            if not self._checked:
                self._check_step(losses)
            reported = [None if loss is None else loss.detach() for loss in losses]
            if self.gives_losses and self.training:
                if weights is not None:  # in the order of the network's tasks
                    weights = weights[[self.method.tasks.index(task.name) for task in self.tasks]]
                pairs = zip(self.tasks, scaled(scaled(losses, weights), factors), strict=True)
                # heads of tasks without labels take part with zero: FSDP waits for them elsewhere
                own = [0.0 * predictions[t.name].sum() if loss is None else loss for t, loss in pairs]
                return [*own, auxiliary], reported
            if self.own_method is not None and all(loss is None for loss in losses):
                # a batch without labels adds nothing to the gradients that are accumulated
                total = torch.stack([predictions[t.name].sum() * 0.0 for t in self.tasks]).sum()
            else:
                total = self._total(scaled(losses, factors), weights, alone=factors is None)
            if auxiliary is not None:
                total = total + auxiliary
        return total, reported

    def measure(
        self, predictions: Any, targets: Mapping[str, Tensor | None], labels: Mapping[str, LabelCount]
    ) -> list[Tensor | None]:
        """Return the losses in task order, None for tasks without labels."""
        with self._full_precision():
            return [
                task.measure(
                    prediction_of(predictions, task.name), targets.get(task.name), labels[task.name]
                )[0]
                for task in self.tasks
            ]

    def _measure_apart(
        self,
        inputs: Any,
        targets: Mapping[str, Tensor | None],
        labels: Mapping[str, LabelCount],
        rows: Rows,
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """Return losses and auxiliary loss, with one forward pass per task."""
        losses: list[Tensor | None] = []
        auxiliary = None
        size = sum(map(count, rows.values()))
        for task in self.tasks:
            own, target = rows.get(task.name), targets.get(task.name)
            if own is None or target is None:
                losses.append(None)
                continue
            with self.unforked():
                predictions = self.model(select(inputs, own))
            labeled = LabelCount(labels[task.name].number)
            with self._full_precision():
                prediction = prediction_of(predictions, task.name)
                losses.append(task.measure(prediction, target[own], labeled)[0])
            term = self._take_auxiliary()
            if term is not None:  # a mean over samples
                term = term * (count(own) / size)
                auxiliary = term if auxiliary is None else auxiliary + term
        return losses, auxiliary

    @contextlib.contextmanager
    def unforked(self) -> Iterator[None]:
        """Turn off the merge at the features inside a ``with`` block."""
        training = self.method.training
        self.method.training = False
        try:
            yield
        finally:
            self.method.training = training

    def _take_auxiliary(self) -> Tensor | None:
        return None if self._auxiliary is None else self._auxiliary()

    def _total(
        self, losses: Sequence[Tensor | None], preference: Tensor | None, *, alone: bool
    ) -> Tensor:
        present = [loss for loss in losses if loss is not None]
        if self.own_method is not None and alone and present:
            return sum(present[1:], present[0])
        names = (task.name for task in self.tasks)
        # gradients of parameters are merged once per optimizer step, those of features in every batch
        merge = not self.method.wrt_parameters or bool(self.accelerator.sync_gradients)
        return self.method.total(dict(zip(names, losses, strict=True)), merge, preference)

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Disable autocast, so that losses are computed in float32."""
        if not self.half_precision:
            return _nothing
        return torch.autocast(self.accelerator.device.type, enabled=False)

    def _check_step(self, losses: Sequence[Tensor | None]) -> None:
        """Check the losses of the first training step."""
        if not (self.training and torch.is_grad_enabled()):
            return
        self._checked = True
        check_losses({task.name: loss for task, loss in zip(self.tasks, losses, strict=True)})


def scaled(
    losses: Sequence[Tensor | None], factors: Sequence[float] | Tensor | None
) -> list[Tensor | None]:
    """Multiply the losses by their factors, if any."""
    if factors is None:
        return list(losses)
    pairs = zip(losses, factors, strict=True)
    return [None if loss is None else loss * factor for loss, factor in pairs]


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer without parameters of the model; warn of one without those of its method."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise SpecError(
            "the optimizer holds no parameter of the model, so nothing would be trained; create it with "
            "mtlkit.param_groups(model, lr=...)"
        )
    method = getattr(model, "method", None)
    if isinstance(method, Method):
        check_optimizers(method, [optimizer], stacklevel=4)
