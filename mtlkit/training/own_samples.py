"""One forward pass per task, if every task has its own samples.

Gradients of parameters need one backward pass per task. With one graph of the whole batch, each pass
visits every sample, so a step costs as much as K plain steps. With K graphs of the tasks' own samples,
it costs as much as one, with the same gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn

from mtlkit.errors import UsageError
from mtlkit.method.method import Method
from mtlkit.tasks import LabelCount, Task
from mtlkit.tasks.overlap import labeled_samples

PerTask: TypeAlias = Literal["auto", "always", "never"]
Rows: TypeAlias = dict[str, "slice | Tensor"]
"""The labeled samples of each task in a batch; a task without labels is left out."""


class OwnSamples:
    """Finds the samples of each task in a batch.

    Args:
        tasks: tasks of the run.
        strict: whether every batch must be split; otherwise a batch stays whole if a sample has labels
            of two tasks, or if its inputs cannot be split.
    """

    def __init__(self, tasks: Sequence[Task], *, strict: bool) -> None:
        self.tasks = tasks
        self.strict = strict

    @classmethod
    def wanted(
        cls, mode: PerTask, model: nn.Module, method: Method, tasks: Sequence[Task]
    ) -> OwnSamples | None:
        """Return an object that splits the batches of a run; None for a single forward pass.

        ``"auto"`` splits them if the gradients are the same: no BatchNorm depends on the whole batch,
        and the shared parameters are known.
        """
        if mode == "never" or not method.wrt_parameters or method.is_sum or method.forking is not None:
            return None
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
        if mode == "always" and any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
            raise UsageError(
                "forward_per_task='always': SyncBatchNorm waits for all processes in every forward "
                "pass, but not all of them have samples of every task; use 'auto'"
            )
        shared: Any = getattr(model, "shared_parameters", None)
        if mode == "auto" and (norms or (method.shared is None and shared is None)):
            return None
        if method.shared is None and shared is not None:
            method.set_shared(list(shared()))
        return cls(tasks, strict=mode == "always")

    def find(
        self, inputs: Any, targets: Mapping[str, Tensor | None], labels: Mapping[str, LabelCount]
    ) -> Rows | None:
        """Return the samples of every task in a batch on the host; None to keep it whole."""
        size = self._batch_size(inputs)
        masks = {}
        for task in self.tasks:
            target, count = targets[task.name], labels[task.name]
            if target is not None and count.number:
                masks[task.name] = labeled_samples(task, target, count)
                if len(target) != size:
                    size = None
        if size is None:
            if self.strict:
                raise UsageError(
                    "forward_per_task='always' needs inputs and targets that are tensors with one entry "
                    "per sample, or lists or mappings of such tensors; use 'auto' or 'never'"
                )
            return None
        if not self.strict and masks and int(torch.stack([*masks.values()]).sum(dim=0).max()) > 1:
            return None
        return {name: _places(mask) for name, mask in masks.items()}

    def _batch_size(self, inputs: Any) -> int | None:
        """Return the number of samples; None if the inputs cannot be split by them."""
        if isinstance(inputs, Mapping) and set(inputs) <= {task.name for task in self.tasks}:
            return None  # the network has one pass per task
        sizes: set[int] = set()
        try:
            recursively_apply(lambda t: sizes.add(len(t)), inputs, error_on_other_type=True)
        except TypeError:  # something that is no tensor, or a tensor without an axis
            return None
        return sizes.pop() if len(sizes) == 1 else None


def _places(mask: Tensor) -> slice | Tensor:
    """Return the true positions of a mask; adjacent ones as a slice, which copies nothing."""
    places = mask.nonzero().flatten()
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def select(inputs: Any, rows: slice | Tensor) -> Any:
    """Return these samples of the inputs."""
    return recursively_apply(lambda tensor: tensor[rows], inputs)


def count(rows: slice | Tensor) -> int:
    """Return the number of samples."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)
