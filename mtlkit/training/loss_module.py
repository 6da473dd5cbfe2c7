"""One batch: predictions, losses, and the method's total."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.tasks import Task, task_names
from mtlkit.weighting.base import GradientAggregator
from mtlkit.weighting.create import create_method

__all__ = ["LossModule", "prediction_of", "unpack"]


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


class LossModule(nn.Module):
    """Model, losses and method in one forward pass, so that DDP sees all that the loss is made of."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], accelerator: Any) -> None:
        super().__init__()
        self.model = model
        self.tasks = tuple(tasks)
        self.losses = nn.ModuleList(t.loss for t in tasks if isinstance(t.loss, nn.Module))
        self.accelerator = accelerator
        self.world = int(accelerator.num_processes)
        self.half_precision = accelerator.mixed_precision != "no"
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
        """The model's method, or a plain sum."""
        own = self.own_method
        return self.model.method if own is None else own  # type: ignore[return-value]

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
        with self._full_precision():
            measured = [
                task.measure(prediction_of(predictions, task.name), targets.get(task.name))
                if labelled
                else (None, 0)
                for task in self.tasks
            ]
            local = [loss for loss, _ in measured]
            counts: Sequence[float] = [count for _, count in measured]
            report: Sequence[Tensor | float | None]
            report = [None if loss is None else loss.detach() for loss in local]
            if self.world > 1:
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
        factors = own * self.world / message[0].clamp(min=1)
        scaled = [
            None if loss is None else loss * factors[index].to(loss.dtype)
            for index, loss in enumerate(losses)
        ]
        report = [
            total / count if count else None for total, count in zip(sums, everywhere, strict=True)
        ]
        return scaled, report[:-1], everywhere

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Losses in float32, whatever the network runs in."""
        if not self.half_precision:
            return _NOTHING
        return torch.autocast(self.accelerator.device.type, enabled=False)


def prediction_of(predictions: Any, name: str) -> Tensor:
    """The prediction of one task, in float32 or better."""
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


def unpack(batch: Any, tasks: Sequence[Task]) -> tuple[Any, Mapping[str, Tensor | None]]:
    """Inputs, and targets by task name, of a batch."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(
            f"a batch must be (inputs, targets), not {type(batch).__name__}; targets by task name"
        )
    inputs, targets = batch
    if isinstance(targets, Mapping):
        return inputs, targets
    if isinstance(targets, Tensor):
        targets = [targets]
    if isinstance(targets, tuple | list) and len(targets) == len(tasks):
        return inputs, {task.name: target for task, target in zip(tasks, targets, strict=True)}
    raise UsageError(
        "targets must be a mapping by task name, or one per task in the order "
        f"{', '.join(task.name for task in tasks)}"
    )
