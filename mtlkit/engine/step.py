"""One step, from the tasks' gradients to the merged one.

What a backward pass has measured, inner products and losses, is equal on every process. The engine
knows a method by its :class:`Hooks` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.accumulation import Kept
from mtlkit.engine.gradients import Gradients, TensorList
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.engine.guards.steps import Guards
from mtlkit.engine.processes import ALONE, Processes

Rows = Mapping[int, Sequence[Tensor | None]]
"""Gradients of the features, by task."""


@dataclass
class Step:
    """Inner products and losses of the P tasks that are present in a step.

    They are free of loss scaling, and equal on every process.

    Example:
        >>> step = step_of(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), (0, 1), tasks=2)
        >>> step.present, bool(step.finite), step.units
        ((0, 1), True, tensor([0.2500, 0.5000], dtype=torch.float64))
    """

    tasks: int
    """K, how many tasks the method has."""
    present: tuple[int, ...]
    """Indices of the P tasks that have a gradient on some process."""
    gram: Tensor
    """(P, P) inner products of the gradients."""
    finite: Tensor
    """Whether all gradients are finite, seen from their squares; state is only kept if they are."""
    scale: Tensor
    """Factor of the loss, for example that of a GradScaler."""
    losses: Tensor | None = None
    """(P,) losses, averaged over the processes if some part reads them, else of this process; None if
    the backward did not start from ``total``."""
    cross_gram: Tensor | None = None
    """(P, P) inner products of gradients from independent samples, where the merge asks for them."""
    processes: Processes = ALONE
    """Processes that have other columns of the gradients; ALONE where all have the same."""
    group: str = ""
    """Name of the group of parameters; empty if there is only one."""

    @property
    def unit(self) -> Tensor:
        """Factor of the gradients as they arrived. DDP averages, so a feature's gradient is ``world``
        times its contribution to the gradient of the common loss."""
        return self.scale if self.processes.alone else self.scale * self.processes.world

    @property
    def units(self) -> Tensor:
        """(P,) factors ``1 / (P |G_k|)`` that give gradients as they arrived the length 1 / P."""
        norms = norms_of(self.gram) * self.unit.abs() * max(1, len(self.present))
        return safe_divide(torch.ones_like(norms), norms)

    def of(self, values: Tensor, tasks: tuple[int, ...]) -> Tensor:
        """Entries of the (P,) ``values`` that belong to ``tasks``."""
        if tasks == self.present:
            return values
        return torch.stack([values[self.present.index(task)] for task in tasks])


def step_of(
    gram: Tensor,
    local: tuple[int, ...],
    *,
    tasks: int,
    scale: Tensor | None = None,
    losses: Tensor | None = None,
    cross: Tensor | None = None,
    processes: Processes = ALONE,
    group: str = "",
) -> Step:
    """Measure the gradients of one step.

    ``gram`` has (L, L) inner products of the L tasks ``local`` that have a gradient on this process, and
    ``cross`` (L + 1, L) of independent samples (``Gradients.cross_gram``), in the units of the scaled
    loss. There are (K,) ``losses``. The ``scale`` is not zero (:func:`divisor`). The rest is as in
    :class:`Step`.
    """
    scale = gram.new_ones(()) if scale is None else scale.to(gram)
    present = local
    if not processes.alone:
        present, gram, cross = _sum_over_processes(gram, cross, local, tasks, processes)
    gram = gram / scale.square()
    if cross is not None and present:  # the Gram matrix itself where there are no two samples
        unit = (scale * processes.world).square()
        cross = torch.where(cross[-1, 0] > 0, cross[:-1] / unit, gram)
    own = losses if losses is None or len(present) == tasks else pick(losses, present)
    finite = gram.trace() < torch.inf
    return Step(tasks, present, gram, finite, scale, own, cross, processes, group)


def divisor(scale: Tensor) -> Tensor:
    """Return the divisor of gradients: one if the total was multiplied by zero, as they are zero too."""
    return torch.where(scale == 0, 1.0, scale)


ABSENT, HERE, ELSEWHERE = 0.0, 1.0, 2.0
"""Where a task has a loss, in a report: on no process, on this one, or only on others."""


def reported_losses(report: Tensor) -> Tensor:
    """(K,) losses of a report; NaN for tasks that no process has."""
    losses, presence = report[1:].chunk(2)
    return torch.where(presence == ABSENT, torch.nan, losses)


def scatter(values: Tensor, present: tuple[int, ...], tasks: int, fill: float = torch.nan) -> Tensor:
    """(P, ...) values of the present tasks as (K, ...), ``fill`` elsewhere."""
    if len(present) == tasks:
        return values
    empty = torch.full_like(values[:1].sum(dim=0), fill)
    rows = dict(zip(present, values, strict=True))
    return torch.stack([rows.get(task, empty) for task in range(tasks)])


def pick(values: Tensor, present: tuple[int, ...]) -> Tensor:
    """(P, ...) entries of the present tasks, of (K, ...) values."""
    if len(present) == len(values):
        return values
    return torch.stack([values[task] for task in present]) if present else values[:0]


def embed(matrix: Tensor, tasks: tuple[int, ...], among: tuple[int, ...]) -> Tensor:
    """A matrix over ``tasks`` as one over the tasks ``among``, zero elsewhere."""
    if tasks == among:
        return matrix
    if not tasks:
        return matrix.new_zeros(len(among), len(among))
    places = tuple(among.index(task) for task in tasks)
    half = scatter(matrix, places, len(among), fill=0.0)
    return scatter(half.T, places, len(among), fill=0.0).T


def _sum_over_processes(
    gram: Tensor, cross: Tensor | None, local: tuple[int, ...], tasks: int, processes: Processes
) -> tuple[tuple[int, ...], Tensor, Tensor | None]:
    """The tasks present anywhere, and the two Gram matrices of the whole batch.

    DDP averages gradients, so a feature's gradient of the common loss is 1/world of the local one.
    Which tasks are present is read from the device only where one is missing on this process.
    """
    everyone = tuple(range(tasks))
    message = gram.new_zeros(tasks + 1, tasks)
    if local:
        message[:tasks] = embed(gram, local, everyone)
        for task in local:
            message[tasks, task] = 1
    message = processes.sum(message)
    present = everyone
    if local != everyone:
        present = tuple(torch.nonzero(message[tasks]).flatten().tolist())
    whole = message[:tasks] / processes.world**2
    if cross is not None:
        products = embed(cross[:-1], local, present)
        pairs = cross[-1, 0] if local else gram.new_zeros(())
        cross = processes.sum(torch.cat([products, pairs.expand(1, len(present))]))
    return present, pick(pick(whole, present).T, present).T, cross


@dataclass
class Hooks:
    """What a method gives the engine, which knows nothing else of it."""

    tasks: int
    """Number of tasks, K."""
    weigh: Callable[[Step], Tensor]
    """(P,) weights of the gradients of a step."""
    merge: Callable[[Tensor, Step, Sequence[Tensor]], Tensor] | None
    """(N,) merged gradient of (P, N) gradients, for a merge that needs more than weights."""
    learn: Callable[[Step | None, str], TensorList]
    """Gradients of the parameters that the merge of a group owns; called before ``weigh``."""
    begin: Callable[[], None]
    """Called before the gradients of a step are merged, also if there are none."""
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


def merge(rows: Gradients, step: Step, hooks: Hooks) -> tuple[TensorList, TensorList]:
    """The merged gradient of one group of tensors, and those of the parameters that its merge learns.

    The rows are freed.
    """
    learned = hooks.learn(step, step.group) if hooks.learned else []
    if not step.present:
        return [None] * len(rows.tensors), learned
    if hooks.merge is not None:
        return _merge_whole(rows, step, hooks.merge), learned
    weights = hooks.weigh(step)
    return rows.weighted(step.of(weights, rows.tasks), free=True) if rows.tasks else [], learned


def gradients_of_fork(
    forking: Any, rows: Rows, units: Tensor, processes: Processes, step: Step | None
) -> TensorList:
    """Gradients of the parameters that a fork applies to the features, averaged over the processes."""
    gradients = forking.gradients(rows, units, step)
    if gradients is None:
        return [None] * len(forking.owned())
    if processes.alone or not gradients:
        return [*gradients]
    return [*processes.mean(torch.stack(gradients))]


def _merge_whole(rows: Gradients, step: Step, merge: Callable[..., Tensor]) -> TensorList:
    # divided in place: the (P, N) matrix is a copy, and the largest thing in memory
    matrix = rows.matrix(free=True).div_(step.unit) if rows.tasks else step.gram.new_zeros(0, 0)
    if rows.tasks != step.present:  # zeros for tasks that only other processes have
        by_task = dict(zip(rows.tasks, matrix, strict=True))
        empty = matrix.new_zeros(matrix.shape[1])
        matrix = torch.stack([by_task.get(task, empty) for task in step.present])
    return rows.split(merge(matrix, step, rows.reached) * step.unit)


def merge_parameters(
    rows: Gradients, hooks: Hooks, scale: Tensor, losses: Tensor | None
) -> tuple[TensorList, TensorList]:
    """Merged gradients of shared parameters, group by group, and those of the learned parameters.

    Args:
        rows: gradients of the present tasks, averaged over the processes; they are freed.
        hooks: what the method gives the engine.
        scale: factor of the loss.
        losses: (K,) losses.
    """
    hooks.begin()
    merged: TensorList = [None] * len(rows.tensors)
    groups = hooks.groups(rows.tensors)
    parts = {name: rows if len(c) == len(merged) else rows.take(c) for name, c in groups.items()}
    steps = {
        name: step_of(part.gram(), part.tasks, tasks=hooks.tasks, scale=scale, losses=losses, group=name)
        for name, part in parts.items()
        if part.tasks
    }
    learned = [g for name in groups for g in hooks.learn(steps.get(name), name)] if hooks.learned else []
    weights = {} if hooks.merge else {name: hooks.weigh(step) for name, step in steps.items()}
    for name, step in steps.items():
        part = parts[name]
        if hooks.merge is None:
            gradients = part.weighted(step.of(weights[name], part.tasks), free=True)
        else:
            gradients = _merge_whole(part, step, hooks.merge)
        for column, gradient in zip(groups[name], gradients, strict=True):
            merged[column] = gradient
    return merged, learned
