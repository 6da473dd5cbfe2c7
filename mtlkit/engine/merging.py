"""From the tasks' gradients to the merged one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.accumulation import Kept
from mtlkit.engine.gradients import Gradients, TensorList
from mtlkit.engine.guards import Guards
from mtlkit.engine.step import Step, measure


@dataclass
class Hooks:
    """What a method gives the engine, which knows nothing else of it."""

    tasks: int
    """Number of tasks, K."""
    weigh: Callable[[Step], Tensor]
    """(P,) weights of the gradients of a step."""
    merge: Callable[[Tensor, Step, Sequence[Tensor]], Tensor] | None
    """(N,) merged gradient of (P, N) gradients, for a merge that needs more than weights."""
    learn: Callable[[Step | None, str], list[Tensor | None]]
    """Gradients of the parameters that the merge of a group owns; called before ``weigh``."""
    nothing: Callable[[], TensorList]
    """Called instead of ``weigh`` in a step without any gradient."""
    learned: list[Tensor]
    """These parameters, of all groups."""
    weighing: list[Tensor]
    """Parameters of the parts that weigh losses. The total gives them their gradient; as inputs of the
    node they belong to the forward, where DDP looks for the parameters that a step uses."""
    groups: Callable[[Sequence[Tensor]], Mapping[str, Sequence[int]]]
    """Places of each group's parameters in a list of parameters."""
    forking: Any
    """What forks the features; None if every task is given the features as they are."""
    shared: Sequence[Tensor] | None
    """The shared parameters; None for all below the features, or that several losses reach."""
    over_parameters: bool
    """Whether gradients of the shared parameters are merged, not those of the features."""
    cross_gram: bool
    """Whether the merge reads products of gradients from independent samples."""
    guards: Guards
    kept: Kept
    handle: int
    """Number of the compiled decision, see :mod:`mtlkit.engine.compiled`."""
    method: Any
    """Names itself in error messages."""


def merge(rows: Gradients, step: Step, hooks: Hooks) -> TensorList:
    """The merged gradient of one group of tensors."""
    if hooks.merge is None:
        weights = hooks.weigh(step)
        return rows.weighted(step.of(weights, rows.tasks)) if rows.tasks else []
    matrix = rows.matrix() / step.unit if rows.tasks else step.gram.new_zeros(0, 0)
    if rows.tasks != step.present:  # zeros for tasks that only other processes have
        by_task = dict(zip(rows.tasks, matrix, strict=True))
        empty = matrix.new_zeros(matrix.shape[1])
        matrix = torch.stack([by_task.get(task, empty) for task in step.present])
    return rows.split(hooks.merge(matrix, step, rows.reached) * step.unit)


def merge_parameters(
    rows: Gradients, hooks: Hooks, scale: Tensor, losses: Tensor | None
) -> tuple[TensorList, list[Tensor | None]]:
    """Merged gradients of shared parameters, group by group, and those of the learned parameters.

    Args:
        rows: gradients of the present tasks, averaged over the processes.
        hooks: of the method.
        scale: factor of the loss.
        losses: (K,) losses.
    """
    merged: TensorList = [None] * len(rows.tensors)
    learned: list[Tensor | None] = []
    for group, columns in hooks.groups(rows.tensors).items():
        part = rows if len(columns) == len(merged) else rows.pick(columns)
        if not part.tasks:
            learned += hooks.learn(None, group)
            continue
        step = measure(
            part.gram(), part.tasks, tasks=hooks.tasks, scale=scale, losses=losses, group=group
        )
        learned += hooks.learn(step, group)
        for column, gradient in zip(columns, merge(part, step, hooks), strict=True):
            merged[column] = gradient
    return merged, learned
