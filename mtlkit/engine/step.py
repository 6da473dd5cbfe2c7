"""Measurements of one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mtlkit.engine.gradients import Gradients
from mtlkit.engine.processes import ALONE, Processes


@dataclass
class Step:
    """Task gradients of one step, and their inner products.

    The gradients are as they arrived: ``unit`` times those of the loss that all processes minimize
    together. The Gram matrices and the losses are free of that factor and equal on every process.
    """

    tasks: int
    """K, how many tasks the method has."""
    present: tuple[int, ...]
    """Numbers of the P tasks that have a gradient on some process."""
    features: Gradients
    """With respect to the features; of this process's tasks."""
    rows: Gradients
    """The gradients that are measured: those of the features, or of the shared parameters."""
    delivered: Gradients
    """The gradients that the merged one is a combination of: ``rows``, or ``features``."""
    gram: Tensor
    """(P, P) inner products of ``rows``."""
    feature_gram: Tensor
    """(P, P) inner products of ``features``."""
    finite: Tensor
    """Whether all gradients are finite, seen from their squares; state is only kept if they are."""
    scale: Tensor
    """Factor of the loss, for example that of a GradScaler."""
    losses: Tensor | None = None
    """(P,) losses, averaged over the processes if some part reads them, else of this process; None if
    the backward did not start from ``total``."""
    processes: Processes = ALONE

    @property
    def over_parameters(self) -> bool:
        """Whether ``rows`` are gradients of the shared parameters."""
        return self.rows is not self.features

    @property
    def unit(self) -> Tensor:
        """Factor of ``rows``. DDP averages, so a feature's gradient is ``world`` times its share."""
        return self.scale if self.over_parameters else self.scale * self.processes.world

    @property
    def offset(self) -> int:
        """Position of this process's first column in the gradient of the whole batch."""
        return 0 if self.over_parameters else self.processes.rank * self.rows.size

    def of(self, values: Tensor, tasks: tuple[int, ...]) -> Tensor:
        """Entries of the (P,) ``values`` that belong to ``tasks``."""
        if tasks == self.present:
            return values
        return torch.stack([values[self.present.index(task)] for task in tasks])

    def matrix(self) -> Tensor:
        """(P, N) gradients of the present tasks, free of ``unit``; zeros for tasks that are not here."""
        if not self.rows.tasks:
            return self.gram.new_zeros(len(self.present), 0)
        matrix = self.rows.matrix() / self.unit
        if self.rows.tasks == self.present:
            return matrix
        rows = dict(zip(self.rows.tasks, matrix, strict=True))
        return torch.stack([rows.get(task, torch.zeros_like(matrix[0])) for task in self.present])

    def cross_gram(self) -> Tensor:
        """(P, P) products of gradients from independent samples (:meth:`Gradients.cross_gram`).

        The Gram matrix itself where there is no axis of samples: for gradients of parameters or of a
        single sample.
        """
        if self.over_parameters:
            return self.gram
        count = len(self.present)
        message = self.gram.new_zeros(count + 1, count)  # the products, then the number of pairs
        if self.features.tasks:
            products, pairs = self.features.cross_gram()
            if products is not None:
                message[:count] = _embed(products, self.features.tasks, self.present)
            message[count] += pairs
        message = self.processes.sum(message)
        return torch.where(message[count, 0] > 0, message[:count] / self.unit.square(), self.gram)


def measure(
    features: Gradients,
    *,
    tasks: int,
    scale: Tensor,
    losses: Tensor | None = None,
    processes: Processes = ALONE,
    parameter_rows: Callable[[Gradients, tuple[int, ...]], Gradients] | None = None,
    direct: bool = True,
) -> Step:
    """Measure the gradients of one step.

    Args:
        features: gradients with respect to the features, of this process's tasks.
        tasks: number of tasks.
        scale: factor of the loss.
        losses: (K,) losses of the step.
        processes: processes that share the step.
        parameter_rows: gives the parameters' gradients of the present tasks, for ``wrt=parameters``.
        direct: whether the merged gradient is one of the parameters, where there are such rows.
    """
    scale = torch.where(scale == 0, 1.0, scale).to(features.dtype)
    gram = features.gram() if features.tasks else scale.new_zeros(0, 0)
    present = features.tasks
    if not processes.alone:
        present, gram = _sum_over_processes(gram, present, tasks, processes)
    feature_gram = gram = gram / scale.square()
    finite = gram.trace() < torch.inf
    rows = features
    if parameter_rows is not None and present:
        rows = parameter_rows(features, present)
        gram = rows.gram() / scale.square()
        finite = finite & (gram.trace() < torch.inf)
    return Step(
        tasks=tasks,
        present=present,
        features=features,
        rows=rows,
        delivered=rows if direct else features,
        gram=gram,
        feature_gram=feature_gram,
        finite=finite,
        scale=scale,
        losses=losses if losses is None or len(present) == tasks else _pick(losses, present),
        processes=processes,
    )


def measure_rows(
    rows: Gradients,
    *,
    tasks: int,
    scale: Tensor | None = None,
    losses: Tensor | None = None,
    processes: Processes = ALONE,
) -> Step:
    """Measure gradients that are merged as they are, equal on every process.

    Args:
        rows: the gradients.
        tasks: number of tasks.
        scale: factor of the loss; None for none.
        losses: (K,) losses of the step.
        processes: processes that share the step.
    """
    gram = rows.gram() if rows.tasks else torch.zeros(0, 0)
    if scale is None:
        scale = gram.new_ones(())
    else:
        scale = torch.where(scale == 0, 1.0, scale).to(rows.dtype)
        gram = gram.to(scale.device) / scale.square()
    return Step(
        tasks=tasks,
        present=rows.tasks,
        features=Gradients({}, rows.dtype),
        rows=rows,
        delivered=rows,
        gram=gram,
        feature_gram=gram,
        finite=gram.trace() < torch.inf,
        scale=scale,
        losses=None if losses is None else _pick(losses, rows.tasks),
        processes=processes,
    )


def spread(values: Tensor, present: tuple[int, ...], tasks: int, fill: float = torch.nan) -> Tensor:
    """(P, ...) values of the present tasks as (K, ...), ``fill`` elsewhere."""
    if len(present) == tasks:
        return values
    empty = torch.full_like(values[:1].sum(dim=0), fill)
    rows = dict(zip(present, values, strict=True))
    return torch.stack([rows.get(task, empty) for task in range(tasks)])


def _pick(values: Tensor, present: tuple[int, ...]) -> Tensor:
    if len(present) == len(values):
        return values
    return torch.stack([values[task] for task in present]) if present else values[:0]


def _embed(matrix: Tensor, tasks: tuple[int, ...], among: tuple[int, ...]) -> Tensor:
    """A matrix over ``tasks`` as one over the tasks ``among``, zero elsewhere."""
    if tasks == among:
        return matrix
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
        message[:tasks] = _embed(gram, local, everyone)
        for task in local:
            message[tasks, task] = 1
    message = processes.sum(message)
    present = everyone
    if local != everyone:
        present = tuple(torch.nonzero(message[tasks]).flatten().tolist())
    gram = message[:tasks] / processes.world**2
    return present, _pick(_pick(gram, present).T, present).T
