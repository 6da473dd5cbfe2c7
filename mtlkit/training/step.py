"""A training step: predictions, losses, the method's total, its backward pass and the update.

The checks at the end raise or warn where a step would not train what it seems to train.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mtlkit.config.launching import warn_first
from mtlkit.engine.sharded import is_sharded
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.method.create import create_method
from mtlkit.method.dropins import backward
from mtlkit.method.method import Method
from mtlkit.tasks import LabelCount, Task, task_names
from mtlkit.training.accelerators import LabelCounts
from mtlkit.training.loaders import Batch
from mtlkit.training.own_samples import OwnSamples, PerTask, Rows, count, select
from mtlkit.training.readings import BatchReading, Readings, RunningStatistics, gradients_of

BestBy = str | Mapping[str, float]
"""What says which validation is best; see :class:`~mtlkit.Trainer`."""
Outcome = Literal["accumulated", "unlabeled", "updated", "skipped", "overflowed"]

_nothing = contextlib.nullcontext()


class TrainStep:
    """Takes steps: forward and backward of every batch, and the update after the last of a step.

    Accelerate's own ``backward`` and ``step`` search the disk for optional packages and inspect
    signatures every time, which costs a small network a fifth of its time. Without a gradient scaler, on
    one process or with DDP, they only call torch; so torch is called directly.

    Args:
        prepared: a :class:`LossModule` as Accelerate prepared it.
        optimizer: as Accelerate prepared it.
        accelerator: of the run.
        stop: set where this process was asked to stop.
        on_nonfinite: see :class:`mtlkit.Trainer`, as for the rest.
        max_grad_norm: largest norm of the gradient; None for any.
        forward_per_task: whether each task has a forward pass of its own.
        clip: whose gradient ``max_grad_norm`` limits, ``"all"`` or ``"shared"``.
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
        check_choice("on_nonfinite", on_nonfinite, ("raise", "skip"))
        check_choice("forward_per_task", forward_per_task, ("auto", "always", "never"))
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise SpecError(f"max_grad_norm must be above 0, not {max_grad_norm}")
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
        self._second_pass = any(part.second_pass for part in module.method.parts)
        self._merges_shards = module.gives_losses = self._needs_passes_by_task()
        self.own_samples = None
        if not self._merges_shards:
            self.own_samples = OwnSamples.wanted(
                forward_per_task, module.model, self.method, module.tasks
            )

    def _needs_passes_by_task(self) -> bool:
        """Whether FSDP2 has sharded parameters whose gradients are merged."""
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
            return "unlabeled"  # there is nothing to learn from this batch
        if self.readings.skips and number % self.batches_per_step == 0:
            self._statistics.keep()
        with self.accelerator.accumulate(self.prepared) if self._accumulates else _nothing:
            total, losses = self.prepared(*batch._replace(rows=rows), factors)
            if self._merges_shards:
                total = self._backward_by_task(total, counts)
            else:
                self._backward(total)
            # gradients of parameters are known when they have been merged
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

    def _backward(self, total: Tensor) -> None:
        if self._direct:
            (total if self.batches_per_step == 1 else total / self.batches_per_step).backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(total)

    def _backward_by_task(self, losses: Sequence[Tensor | None], counts: Sequence[float]) -> Tensor:
        """Run one backward pass per task over a sharded model, and return the sum of the losses.

        Args:
            losses: one per task, zero where this process has no labels; last, one that is not merged.
            counts: labels of each task on all processes; a task without any is left out.
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
        if batches < self.batches_per_step:  # the end of an epoch; the losses were divided by all
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

        The forward pass is one in training mode, so BatchNorm takes the batch's own statistics. Buffers
        that it changes, such as BatchNorm's running averages, get their values back: every batch counts
        once in them.
        """
        self._statistics.keep()
        with self.accelerator.autocast(), self._module.unforked():
            predictions = self._module.model(batch.inputs)
        losses = self._module.measure(predictions, batch.targets, batch.labels)
        self._statistics.restore()
        self.method.update(dict(zip(self.tasks, scaled(losses, factors), strict=True)))


class LossModule(nn.Module):
    """Model, losses and method in one forward pass, so that DDP sees everything that enters the loss."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], accelerator: Any) -> None:
        super().__init__()
        self.model = model
        self.tasks = tuple(tasks)
        self.losses = nn.ModuleList(t.loss for t in tasks if isinstance(t.loss, nn.Module))
        self.accelerator = accelerator
        self.half_precision = accelerator.mixed_precision != "no"
        method = _find_method(model, task_names(tasks))
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
            losses = scaled(losses, weights)
            if self.gives_losses and self.training:
                pairs = zip(self.tasks, scaled(losses, factors), strict=True)
                # heads of tasks without labels take part with zero: FSDP waits for them elsewhere
                own = [0.0 * predictions[t.name].sum() if loss is None else loss for t, loss in pairs]
                return [*own, auxiliary], reported
            if self.own_method is not None and all(loss is None for loss in losses):
                # a batch without labels adds nothing to the gradients that are accumulated
                total = torch.stack([predictions[t.name].sum() * 0.0 for t in self.tasks]).sum()
            else:
                total = self._total(scaled(losses, factors), alone=factors is None)
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
        """Return losses and auxiliary loss, by one forward pass for the samples of each task."""
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
        """Let the model compute predictions whose gradients are not merged where the features fork."""
        training = self.method.training
        self.method.training = False
        try:
            yield
        finally:
            self.method.training = training

    def _take_auxiliary(self) -> Tensor | None:
        return None if self._auxiliary is None else self._auxiliary()

    def _total(self, losses: Sequence[Tensor | None], *, alone: bool) -> Tensor:
        present = [loss for loss in losses if loss is not None]
        if self.own_method is not None and alone and present:
            return sum(present[1:], present[0])
        names = (task.name for task in self.tasks)
        # gradients of parameters are merged once per optimizer step, those of features in every batch
        merge = not self.method.wrt_parameters or bool(self.accelerator.sync_gradients)
        return self.method.total(dict(zip(names, losses, strict=True)), merge)

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Compute losses in float32, also where the network runs in half precision."""
        if not self.half_precision:
            return _nothing
        return torch.autocast(self.accelerator.device.type, enabled=False)

    def _check_step(self, losses: Sequence[Tensor | None]) -> None:
        """Raise or warn in the first training step if it would not train what it seems to train."""
        if not (self.training and torch.is_grad_enabled()):
            return
        self._checked = True
        pairs = zip(self.tasks, losses, strict=True)
        detached = [t.name for t, loss in pairs if loss is not None and not loss.requires_grad]
        if detached:
            raise UsageError(
                f"the loss of {' and '.join(map(repr, detached))} does not depend on any parameter that "
                "is trained, so it has no gradient: is the prediction detached, computed under "
                "torch.no_grad(), or its part of the network frozen? Leave out tasks that do not train"
            )


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that all tasks share."""
    network: Any = getattr(model, "architecture", model)
    if not hasattr(network, "shared_parameters"):
        raise SpecError(
            "clip='shared' needs a model with shared_parameters(), such as an Architecture; "
            f"{type(model).__name__} has none: set clip='all'"
        )
    return list(network.shared_parameters())


def _find_method(model: nn.Module, names: Sequence[str]) -> Method | None:
    """Return the method of a model, which must be ``model.method`` and know these tasks."""
    method = getattr(model, "method", None)
    if method is None:
        for path, module in model.named_modules():
            numbers = tuple(map(str, range(len(names))))  # those of create_method(..., tasks=2)
            same = isinstance(module, Method) and set(module.tasks) in (set(names), set(numbers))
            if same and len(names) > 1:
                raise SpecError(
                    f"the model has its method under the name {path!r}, where the Trainer does not look "
                    f"for it; name it 'method', for example self.method = self.{path}"
                )
        return None
    if not isinstance(method, Method):
        raise SpecError(f"model.method must come from mtlkit.create_method, not {method!r}")
    if set(method.tasks) != set(names):
        raise SpecError(
            f"the method knows the tasks {', '.join(method.tasks)}; given are {', '.join(names)}"
        )
    return method


def scaled(
    losses: Sequence[Tensor | None], factors: Sequence[float] | Tensor | None
) -> list[Tensor | None]:
    """Return the losses times their factors; as they are where there are none."""
    if factors is None:
        return list(losses)
    pairs = zip(losses, factors, strict=True)
    return [None if loss is None else loss * factor for loss, factor in pairs]


def prediction_of(predictions: Any, name: str) -> Tensor:
    """Return the prediction of one task, in float32 or better."""
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


def check_choice(name: str, given: Any, known: Sequence[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if given not in known:
        raise unknown_name(f"value of {name}", str(given), known)


def check_at_least(least: int, numbers: Mapping[str, int | None]) -> None:
    """Refuse a number below ``least``; None passes."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise SpecError(f"{name} must be at least {least}, not {number}")


def check_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks, which must have losses and different names."""
    task_names(tasks)
    for task in tasks:
        if not isinstance(task, Task):
            raise SpecError(
                f"a Trainer needs Task objects, with losses; {task!r} is only a name. "
                "For example mtlkit.Task.classification('left', classes=10)"
            )
    return tuple(tasks)


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer without parameters of the model; warn of one without those of its method."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise SpecError(
            "the optimizer holds no parameter of the model, so nothing would be trained; create it with "
            "mtlkit.param_groups(model, lr=...)"
        )
    method = getattr(model, "method", None)
    if not isinstance(method, Method):
        return
    method._guards.optimizer.done = True  # noqa: SLF001  it would make the same check in the first step
    owned = [p for p in method.parameters() if p.requires_grad]
    left_out = sum(id(parameter) not in held for parameter in owned)
    if left_out:
        warn_first(
            f"the optimizer holds {len(owned) - left_out} of the {len(owned)} parameters of the method "
            f"{method}, so the others (rotations, weights) stay as they are; "
            "create it with mtlkit.param_groups(model, lr=...)",
            stacklevel=3,
        )


def check_best_by(best_by: BestBy, tasks: Sequence[Task]) -> BestBy:
    """Return ``best_by`` if the tasks have the metrics that it names; of a row those of these tasks."""
    known = [f"{task.name}/{metric}" for task in tasks for metric in (*task.higher_is_better, "loss")]
    if isinstance(best_by, Mapping):
        row = {key: value for key, value in best_by.items() if key in known and value}
        if not row:
            raise SpecError(f"best_by names no metric of the tasks; their metrics: {', '.join(known)}")
        return row
    common = set.intersection(*(set(task.higher_is_better) for task in tasks))
    over_tasks = [f"mean/{metric}" for metric in sorted(common)]
    check_choice("best_by", best_by, ["improvement", "loss", *over_tasks, *known])
    return best_by


def check_single_task(
    single_task: Mapping[str, Mapping[str, float]], tasks: Sequence[Task]
) -> Mapping[str, Mapping[str, float]]:
    """Return the metrics of single-task models, which must be those of the tasks."""
    known = {task.name: (*task.higher_is_better, "loss") for task in tasks}
    for name, metrics in single_task.items():
        check_choice("single_task_metrics", name, list(known))
        for metric in metrics:
            check_choice(f"single_task_metrics of {name}", metric, known[name])
    return single_task
