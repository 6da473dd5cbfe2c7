"""Stack samples into batches; targets may be missing, and may be plain Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import default_collate

from mtlkit.tasks import NO_LABEL

Targets: TypeAlias = dict[str, Tensor]


class StackedSamples(Sequence[tuple[Tensor, Targets]]):
    """Samples stacked into a batch; item ``i`` is sample ``i``."""

    def __init__(self, inputs: Tensor, targets: Targets) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return StackedSamples(self.inputs[index], {k: v[index] for k, v in self.targets.items()})
        return self.inputs[index], {key: value[index] for key, value in self.targets.items()}


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples ``(input, {task: target})``; targets may be None or absent in some samples.

    A target is a tensor, an array, a number, or a list of numbers and None. A missing one becomes NaN,
    or :data:`~mtlkit.tasks.NO_LABEL` among integers. The target of a task without any label in the batch
    is None. A :class:`StackedSamples` is unpacked.

    Example:
        >>> samples = [(torch.zeros(3), {"age": 31.0, "job": 2}), (torch.ones(3), {"age": None})]
        >>> inputs, targets = collate(samples)
        >>> inputs.shape, targets
        (torch.Size([2, 3]), {'age': tensor([31., nan]), 'job': tensor([   2, -100])})
    """
    if isinstance(samples, StackedSamples):
        return samples.inputs, samples.targets
    first = samples[0]
    if not (isinstance(first, tuple | list) and len(first) == 2 and isinstance(first[1], Mapping)):
        return default_collate(list(samples))
    inputs = default_collate([sample[0] for sample in samples])
    names = dict.fromkeys(name for sample in samples for name in sample[1])
    return inputs, {name: stack_targets([sample[1].get(name) for sample in samples]) for name in names}


def stack_targets(targets: Sequence[Any]) -> Tensor | None:
    """Stack the targets of one task; None if all are missing."""
    tensors = [None if target is None else _as_tensor(target) for target in targets]
    complete = _fill(tensors, lambda known, _: known.shape)
    return None if complete is None else default_collate(complete)


def join_targets(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Join the targets of one task in several batches of these sizes."""
    complete = _fill(parts, lambda known, index: torch.Size([sizes[index], *known.shape[1:]]))
    return None if complete is None else torch.cat(complete)


def _fill(
    targets: Sequence[Tensor | None], shape: Callable[[Tensor, int], torch.Size]
) -> list[Tensor] | None:
    """Return the targets in one dtype, missing ones filled in; None if all are missing."""
    known = [target for target in targets if target is not None]
    if not known:
        return None
    dtype = reduce(torch.promote_types, {target.dtype for target in known})
    if len(known) < len(targets):
        # neither dtype can represent a missing label
        dtype = {torch.bool: torch.float32, torch.uint8: torch.int64}.get(dtype, dtype)
    filler = torch.nan if dtype.is_floating_point else NO_LABEL
    return [
        torch.full(shape(known[0], index), filler, dtype=dtype) if t is None else t.to(dtype)
        for index, t in enumerate(targets)
    ]


def _as_tensor(target: Any) -> Tensor:
    if isinstance(target, list | tuple):
        return torch.as_tensor(_with_nan(target))
    # Python floats are doubles, and networks predict float32
    return torch.as_tensor(target, dtype=torch.float32 if isinstance(target, float) else None)


def _with_nan(values: Any) -> Any:
    if isinstance(values, list | tuple):
        return [_with_nan(value) for value in values]
    return torch.nan if values is None else values
