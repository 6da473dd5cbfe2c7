"""Overlap of labels: feature gradients of two tasks interact only in samples labeled for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.tasks.labels import LabelCount, labeled_rows
from mtlkit.tasks.task import Task


class Overlap(NamedTuple):
    """The labels of a batch."""

    shared: bool
    """Whether some sample has labels of several tasks."""
    present: int
    """The tasks with labels; bit k is task k."""


def label_overlap(
    tasks: Sequence[Task],
    targets: Mapping[str, Tensor | None],
    labels: Mapping[str, LabelCount] | None = None,
    inputs: Any = None,
) -> Overlap:
    """Return the overlap of one batch, whose targets should be on the CPU.

    Args:
        tasks: the tasks, in the order of the method.
        targets: targets by task name.
        labels: counts of the targets, if known.
        inputs: inputs of the batch; with a mapping by task, every task has its own samples.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.classification("a", 3), mtlkit.Task.regression("b")]
    >>> targets = {"a": torch.tensor([1, -1]), "b": torch.tensor([[torch.nan], [0.5]])}
    >>> label_overlap(tasks, targets)  # each sample has the label of one task
    Overlap(shared=False, present=3)
    """
    table = shared_samples(tasks, targets, labels, inputs)
    counts = table.diagonal()
    present = sum(1 << number for number, count in enumerate(counts) if count)
    return Overlap(bool((table - np.diag(counts)).any()), present)


def shared_samples(
    tasks: Sequence[Task],
    targets: Mapping[str, Tensor | None],
    labels: Mapping[str, LabelCount] | None = None,
    inputs: Any = None,
) -> NDArray[np.int64]:
    """Return the (K, K) number of samples of a batch that are labeled for both tasks.

    The arguments are those of :func:`label_overlap`.
    """
    found = [targets.get(task.name) for task in tasks]
    masks = np.zeros((len(tasks), max((len(t) for t in found if t is not None), default=0)), np.int64)
    for mask, task, target in zip(masks, tasks, found, strict=True):
        if target is not None:
            count = task.count_labels(target) if labels is None else labels[task.name]
            mask[: len(target)] = labeled_samples(task, target, count).numpy()
    table: NDArray[np.int64] = masks @ masks.T
    own_samples = isinstance(inputs, Mapping) and set(inputs) <= {task.name for task in tasks}
    return np.diag(table.diagonal()) if own_samples else table


def labeled_samples(task: Task, target: Tensor, count: LabelCount) -> Tensor:
    """Return a (B,) mask of the samples that have a label of the task."""
    whole = len(target) if task.labels is None else target.numel()
    if count.number == whole:
        return torch.ones(len(target), dtype=torch.bool)
    mask = labeled_rows(target) if task.labels is None else task.labels(target)
    return mask.reshape(len(target), -1).any(dim=1).cpu()


def overlap_advice(method: Any, overlaps: Sequence[Overlap]) -> str | None:
    """Return advice for a method on such batches, or None.

    Args:
        method: a method of :func:`mtlkit.create_method`.
        overlaps: results of :func:`label_overlap` for some batches.

    >>> import mtlkit
    >>> apart = [Overlap(shared=False, present=3)] * 5
    >>> print(overlap_advice(mtlkit.create_method("pcgrad", tasks=2), apart))
    no sample is labeled for two tasks, so their feature gradients never overlap and pcgrad sees no ...
    >>> overlap_advice(mtlkit.create_method("pcgrad(wrt=parameters)", tasks=2), apart)
    """
    labeled = [overlap.present for overlap in overlaps if overlap.present]
    if not labeled or len(method.tasks) < 2 or any(overlap.shared for overlap in overlaps):
        return None
    if all(present.bit_count() == 1 for present in labeled):
        if method.is_sum or (method.forking is None and not method.merging.reads_gram):
            return None
        return (
            f"every batch has labels of one task only, so {method} receives one gradient at a time and "
            "has nothing to merge; use batches of all tasks (for sources: batches=all)"
        )
    part = method.merging
    reads_angles = part is not None and part.reads_gram and part.reads_angles
    if method.forking is None and (method.wrt_parameters or not reads_angles):
        return None
    todo = "merge the gradients of the shared parameters instead: wrt=parameters"
    if method.forking is not None:
        todo = f"use a method without {method.forking.name} that merges with wrt=parameters"
    return (
        "no sample is labeled for two tasks, so their feature gradients never overlap "
        f"and {method} sees no conflict there; {todo}"
    )


class LabelOverlap:
    """Observes the labels of the first batches of a training run; tasks in the order of the method."""

    batches = 20
    """Number of batches that are observed."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.seen: list[Overlap] = []
        self._reported = False

    def observe(
        self, inputs: Any, targets: Mapping[str, Tensor | None], labels: Mapping[str, LabelCount]
    ) -> None:
        """Observe a batch on the CPU, unless enough have been seen."""
        if len(self.seen) < self.batches:
            self.seen.append(label_overlap(self.tasks, targets, labels, inputs))

    def is_due(self) -> bool:
        """Return whether enough batches have been seen; True only once."""
        due = not self._reported and len(self.seen) >= self.batches
        self._reported |= due
        return due


def join_overlaps(seen: Sequence[Sequence[Overlap]]) -> list[Overlap]:
    """Combine what the processes saw of each batch."""
    return [
        Overlap(any(part.shared for part in parts), reduce(or_, (part.present for part in parts)))
        for parts in zip(*seen, strict=True)
    ]
