"""Gradients of the shared parameters, one task after the other, for ``wrt=parameters``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtlkit.distributed import Processes
from mtlkit.errors import UsageError
from mtlkit.gradients import Gradients
from mtlkit.graph import leaves_below, nodes_below

__all__ = [
    "LossParameters",
    "LossRows",
    "parameters_below",
    "rows_through_features",
    "split_parameters",
]

Row = Sequence[Tensor | None]


def parameters_below(
    features: Sequence[Tensor], shared: Sequence[Tensor] | None
) -> tuple[list[Tensor], bool]:
    """Parameters below the features that the rows are taken of, and whether these are all there are.

    If so, the merged row is their gradient and is handed to them directly: the backbone is walked K
    times, not K + 1 times.
    """
    _refuse_sharded(features)
    below = leaves_below(features)
    if shared is None:
        chosen: list[Tensor] = [t for t in below if isinstance(t, nn.Parameter)]
        missing = "no parameter lies below the features (is the backbone frozen?)"
    else:
        wanted = {id(p) for p in shared}
        chosen = [tensor for tensor in below if id(tensor) in wanted]
        missing = (
            "none of the parameters in `shared` lies below the features; pass the module that "
            "computes them, as it is used in the forward pass"
        )
    if not chosen:
        raise UsageError(f"wrt=parameters: {missing}; or use wrt=features")
    return chosen, len(chosen) == len(below)


def rows_through_features(
    grads: Gradients,
    features: Sequence[Tensor],
    parameters: Sequence[Tensor],
    processes: Processes,
) -> Callable[[tuple[int, ...]], Gradients]:
    """A function that walks from the features to the parameters, once for each present task.

    Args:
        grads: gradients with respect to the features, of this process's tasks.
        features: the tensors that were forked.
        parameters: the shared parameters.
        processes: processes whose rows are averaged.
    """

    def walk(task: int) -> Row:
        pairs = [(z, g) for z, g in zip(features, grads.rows[task], strict=True) if g is not None]
        return torch.autograd.grad(
            [z for z, _ in pairs],
            parameters,
            [g.to(z.dtype) for z, g in pairs],
            retain_graph=True,  # the backward that called the junction frees the graph
            allow_unused=True,
        )

    def rows(present: tuple[int, ...]) -> Gradients:
        found = {task: walk(task) for task in grads.tasks}
        return Gradients(_average(found, present, parameters, processes), grads.dtype)

    return rows


@dataclass(frozen=True)
class LossParameters:
    """The parameters that the losses of one step reach.

    Attributes:
        merged: those whose gradients may be merged: named as shared, or found.
        others: those whose gradients are added.
    """

    merged: list[Tensor]
    others: list[Tensor]

    @property
    def all(self) -> list[Tensor]:
        """Both, the merged ones first."""
        return [*self.merged, *self.others]


def split_parameters(
    losses: Sequence[Tensor], shared: Sequence[Tensor] | None, processes: Processes
) -> LossParameters:
    """Find the parameters below the losses and tell those to be merged from the others.

    Without ``shared`` these are all module parameters; other leaf tensors that require a gradient,
    such as the coordinates of a physics-informed network, are merged only if there is nothing else.
    """
    _refuse_sharded(losses)
    below = leaves_below(losses)
    if shared is None:
        if not processes.alone:
            raise UsageError(
                "wrt=parameters without method(features) on several processes needs the shared "
                "parameters, in the same order everywhere: pass shared=model to create_method"
            )
        chosen: list[Tensor] = [tensor for tensor in below if isinstance(tensor, nn.Parameter)] or below
    else:
        reached = {id(tensor) for tensor in below}
        # the same list on every process, also where a task without labels leaves some unreached
        chosen = [t for t in shared if t.requires_grad and (not processes.alone or id(t) in reached)]
        if losses and not any(id(t) in reached for t in chosen):
            raise UsageError(
                "wrt=parameters: the losses reach none of the parameters in `shared`; pass the module "
                "that computes them, as it is used in the forward pass"
            )
    apart = {id(tensor) for tensor in chosen}
    return LossParameters(chosen, [tensor for tensor in below if id(tensor) not in apart])


class LossRows:
    """Gradients of every loss with respect to the parameters, by one walk per task.

    Attributes:
        conflicting: positions of the parameters whose gradients are merged: several tasks reach them.
        shared: gradients of these, averaged over the processes.
    """

    def __init__(
        self,
        losses: Sequence[Tensor | None],
        parameters: LossParameters,
        scale: Tensor,
        processes: Processes,
    ) -> None:
        self._parameters = parameters.all
        local = {k: x for k, x in enumerate(losses) if x is not None and x.requires_grad}
        self._rows: dict[int, Row] = {
            task: torch.autograd.grad(
                loss,
                self._parameters,
                scale.to(loss.dtype),
                retain_graph=task != max(local),
                allow_unused=True,
            )
            for task, loss in local.items()
        }
        self._fill = not processes.alone  # DDP waits for a gradient of every parameter
        count = len(parameters.merged)
        reached = torch.tensor(
            [[k in local, *self._reached(k, count)] for k in range(len(losses))], dtype=torch.float32
        )
        if not processes.alone:
            reached = processes.sum(reached.to(scale.device)).cpu()
        present = torch.nonzero(reached[:, 0]).flatten().tolist()
        several = (reached[:, 1:] > 0).sum(dim=0) > 1
        self.conflicting: list[int] = torch.nonzero(several).flatten().tolist()
        double = any(p.dtype == torch.float64 for p in self._parameters)
        self.shared = Gradients(
            _average(
                {task: [row[i] for i in self.conflicting] for task, row in self._rows.items()},
                present,
                [self._parameters[i] for i in self.conflicting],
                processes,
            ),
            torch.float64 if double else torch.float32,
        )

    def deliver(self, merged: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Every parameter's gradient: merged, that of the only task, or the sum over the tasks."""
        chosen = dict(zip(self.conflicting, merged, strict=True)) if merged else {}
        gradients: list[Tensor | None] = []
        for i, parameter in enumerate(self._parameters):
            gradient = chosen[i] if i in chosen else self._sum(i)
            if gradient is None and self._fill:
                gradient = torch.zeros_like(parameter)
            gradients.append(None if gradient is None else gradient.to(parameter.dtype))
        return gradients

    def _reached(self, task: int, count: int) -> list[bool]:
        return (
            [g is not None for g in self._rows[task][:count]] if task in self._rows else [False] * count
        )

    def _sum(self, position: int) -> Tensor | None:
        found = [row[position] for row in self._rows.values()]
        terms = [gradient for gradient in found if gradient is not None]
        return torch.stack(terms).sum(dim=0) if len(terms) > 1 else next(iter(terms), None)


def _average(
    rows: Mapping[int, Row],
    present: Iterable[int],
    parameters: Sequence[Tensor],
    processes: Processes,
) -> dict[int, Row]:
    """Rows of all present tasks, averaged over the processes; alone, the rows as they are."""
    if processes.alone:
        return {task: rows[task] for task in present}
    nothing = [None] * len(parameters)
    averaged: dict[int, Row] = {}
    for task in present:
        filled = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, rows.get(task, nothing), strict=True)
        ]
        flat = processes.mean(torch.cat([g.reshape(-1) for g in filled]))  # one message per task
        pieces = torch.split(flat, [g.numel() for g in filled])
        averaged[task] = [piece.view_as(g) for piece, g in zip(pieces, filled, strict=True)]
    return averaged


def _refuse_sharded(tensors: Sequence[Tensor]) -> None:
    """Raise where FSDP shards the parameters: its hooks expect a single walk through the graph."""
    for node in nodes_below(tensors):
        if type(node).__name__ in ("RegisterPostBackwardFunctionBackward", "_PostBackwardBackward"):
            raise UsageError(
                "wrt=parameters walks the graph once per task, and FSDP's hooks allow one walk; use "
                "wrt=features with method(features), or DDP"
            )
