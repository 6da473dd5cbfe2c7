"""One batch: predictions, losses, and the method's total."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.tasks import LabelCount, Task, task_names
from mtlkit.weighting import GradientAggregator, create_method


class LossModule(nn.Module):
    """Model, losses and method in one forward pass, so that DDP sees everything that enters the loss."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], accelerator: Any) -> None:
        super().__init__()
        self.model = model
        self.tasks = tuple(tasks)
        self.losses = nn.ModuleList(t.loss for t in tasks if isinstance(t.loss, nn.Module))
        self.accelerator = accelerator
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
        labels: Mapping[str, LabelCount] | None = None,
        factors: Sequence[float] | None = None,
    ) -> Any:
        """Predictions; or with targets the total, and the tasks' losses.

        Args:
            inputs: of the model.
            targets: by task name.
            labels: of the targets, by task name.
            factors: for each task's loss in the total, so that on several processes the mean over the
                processes is the mean over all labels; None for one process.
        """
        predictions = self.model(inputs)
        if targets is None or labels is None:
            return predictions
        with self._full_precision():
            losses = [
                task.measure(
                    prediction_of(predictions, task.name), targets.get(task.name), labels[task.name]
                )[0]
                for task in self.tasks
            ]
            reported = [None if loss is None else loss.detach() for loss in losses]
            if factors is not None:
                losses = [
                    None if loss is None else loss * factor
                    for loss, factor in zip(losses, factors, strict=True)
                ]
            names = (task.name for task in self.tasks)
            if self.own_method is not None and all(loss is None for loss in losses):
                # a batch without labels adds nothing to the gradients that are accumulated
                total = sum(predictions[task.name].sum() * 0.0 for task in self.tasks)
            else:
                total = self.method.total(dict(zip(names, losses, strict=True)))
            auxiliary = None if self._auxiliary is None else self._auxiliary()
            if auxiliary is not None:
                total = total + auxiliary
        return total, reported

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Losses in float32, also where the network runs in half precision."""
        if not self.half_precision:
            return contextlib.nullcontext()
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
