"""What one backward pass measured: inner products and losses, equal on every process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.engine.processes import ALONE, Processes


@dataclass
class Step:
    """Inner products and losses of the P tasks that are present in a step.

    They are free of loss scaling, and equal on every process.
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


def measure(
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

    Args:
        gram: (L, L) inner products of this process's gradients.
        local: the L tasks that have a gradient on this process.
        tasks: number of tasks, K.
        scale: factor of the loss; None for none.
        losses: (K,) losses.
        cross: (L + 1, L) products of independent samples and how many; see ``Gradients.cross_gram``.
        processes: those that have other samples of the batch; ALONE where the gradients are averaged.
        group: name of the group of parameters.
    """
    scale = gram.new_ones(()) if scale is None else torch.where(scale == 0, 1.0, scale).to(gram)
    present = local
    if not processes.alone:
        present, gram = _sum_over_processes(gram, local, tasks, processes)
        if cross is not None:
            products = embed(cross[:-1], local, present)
            pairs = cross[-1, 0] if local else gram.new_zeros(())
            cross = processes.sum(torch.cat([products, pairs.expand(1, len(present))]))
    gram = gram / scale.square()
    if cross is not None and present:  # the Gram matrix itself where there are no two samples
        unit = (scale * processes.world).square()
        cross = torch.where(cross[-1, 0] > 0, cross[:-1] / unit, gram)
    return Step(
        tasks=tasks,
        present=present,
        gram=gram,
        finite=gram.trace() < torch.inf,
        scale=scale,
        losses=None if losses is None else pick(losses, present),
        cross_gram=cross,
        processes=processes,
        group=group,
    )


def spread(values: Tensor, present: tuple[int, ...], tasks: int, fill: float = torch.nan) -> Tensor:
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
    half = spread(matrix, places, len(among), fill=0.0)
    return spread(half.T, places, len(among), fill=0.0).T


def _sum_over_processes(
    gram: Tensor, local: tuple[int, ...], tasks: int, processes: Processes
) -> tuple[tuple[int, ...], Tensor]:
    """The tasks present anywhere, and the Gram matrix of the whole batch.

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
    gram = message[:tasks] / processes.world**2
    return present, pick(pick(gram, present).T, present).T
