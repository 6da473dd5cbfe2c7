"""Gradients of the shared parameters, one task after the other, for ``wrt=parameters``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtlkit.engine.gradients import Gradients
from mtlkit.engine.graph import leaves_below, needed_again, nodes_below
from mtlkit.engine.processes import Processes
from mtlkit.errors import UsageError

Row = Sequence[Tensor | None]


def parameters_below(
    features: Sequence[Tensor], shared: Sequence[Tensor] | None
) -> tuple[list[Tensor], bool]:
    """Parameters below the features that the rows are taken of, and whether these are all there are.

    If so, the merged row is their gradient and is handed to them directly: the backbone is walked K
    times, not K + 1 times.
    """
    _refuse_single_walks(features, shared)
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
    features: Sequence[Tensor], parameters: Sequence[Tensor], processes: Processes
) -> Callable[[Gradients, tuple[int, ...]], Gradients]:
    """A function that walks from the features to the parameters, once for each present task.

    It takes the gradients with respect to the features, of this process's tasks, and the present tasks.

    Args:
        features: the tensors that were forked.
        parameters: the shared parameters.
        processes: processes whose rows are averaged.
    """

    def walk(row: Row) -> Row:
        needed = zip(features, row, strict=True)
        pairs = [(z, g) for z, g in needed if g is not None and z.requires_grad]
        return torch.autograd.grad(
            [z for z, _ in pairs],
            parameters,
            [g.to(z.dtype) for z, g in pairs],
            retain_graph=True,  # the backward that called the junction frees the graph
            allow_unused=True,
        )

    def rows(grads: Gradients, present: tuple[int, ...]) -> Gradients:
        found = {task: walk(row) for task, row in grads.rows.items()}
        return Gradients(_average(found, present, parameters, processes), grads.dtype, parameters)

    return rows


@dataclass(frozen=True)
class LossParameters:
    """The parameters that the losses of one step reach.

    Attributes:
        candidates: those whose gradients are merged if several tasks reach them.
        others: those whose gradients are added.
    """

    candidates: list[Tensor]
    others: list[Tensor]

    @property
    def all(self) -> list[Tensor]:
        """Both, the candidates first."""
        return [*self.candidates, *self.others]


def split_parameters(
    losses: Sequence[Tensor], shared: Sequence[Tensor] | None, processes: Processes
) -> LossParameters:
    """Find the parameters below the losses and tell those to be merged from the others.

    Without ``shared`` these are all module parameters; other leaf tensors that require a gradient,
    such as the coordinates of a physics-informed network, are merged only if there is nothing else.
    """
    _refuse_single_walks(losses, shared)
    below = leaves_below(losses)
    if shared is None:
        if not processes.alone:
            raise UsageError(
                "wrt=parameters without method(features) on several processes needs the shared "
                "parameters, in the same order everywhere: pass shared=model to create_method"
            )
        modules: list[Tensor] = [tensor for tensor in below if isinstance(tensor, nn.Parameter)]
        chosen = modules or below
    else:
        # the same on every process, also where a task without labels leaves some unreached; each once
        chosen = list({id(tensor): tensor for tensor in shared if tensor.requires_grad}.values())
        if below and {id(tensor) for tensor in chosen}.isdisjoint(id(tensor) for tensor in below):
            raise UsageError(
                "wrt=parameters: the losses reach none of the parameters in `shared`; pass the module "
                "that computes them, as it is used in the forward pass. FSDP replaces parameters, "
                "and does not go with wrt=parameters: use DDP"
            )
    apart = {id(tensor) for tensor in chosen}
    return LossParameters(chosen, [tensor for tensor in below if id(tensor) not in apart])


class LossRows:
    """Gradients of every loss with respect to the parameters, by one walk per task.

    Attributes:
        shared: gradients of the candidates that several tasks reach, averaged over the processes.

    Args:
        losses: one scalar per task, None for a task without labels.
        parameters: what to differentiate by.
        scale: factor of the losses.
        processes: processes whose rows are averaged.
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
                loss, self._parameters, scale.to(loss.dtype), retain_graph=retain, allow_unused=True
            )
            for (task, loss), retain in zip(local.items(), needed_again([*local.values()]), strict=True)
        }
        count = len(parameters.candidates)
        reached = torch.zeros(len(losses), count)
        for task, row in self._rows.items():
            reached[task] = torch.tensor([g is not None for g in row[:count]], dtype=torch.float32)
        if not processes.alone:
            reached = processes.sum(reached.to(scale.device)).cpu()
        several = (reached > 0).sum(dim=0) > 1
        self._merged: list[int] = several.nonzero().flatten().tolist()
        present = reached[:, several].any(dim=1).nonzero().flatten().tolist()
        tensors = [self._parameters[i] for i in self._merged]
        found = {task: [row[i] for i in self._merged] for task, row in self._rows.items()}
        double = any(p.dtype == torch.float64 for p in parameters.candidates)
        dtype = torch.float64 if double else torch.float32
        self.shared = Gradients(_average(found, present, tensors, processes), dtype, tensors)

    def deliver(self, merged: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Every parameter's gradient: merged, that of the only task, or the sum over the tasks."""
        chosen = dict(zip(self._merged, merged, strict=True))
        found = [
            chosen[i] if i in chosen else _sum(row[i] for row in self._rows.values())
            for i in range(len(self._parameters))
        ]
        return [
            None if gradient is None else gradient.to(parameter.dtype)
            for parameter, gradient in zip(self._parameters, found, strict=True)
        ]


def _sum(gradients: Iterable[Tensor | None]) -> Tensor | None:
    terms = [gradient for gradient in gradients if gradient is not None]
    return sum(terms[1:], terms[0]) if terms else None


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


def _refuse_single_walks(tensors: Sequence[Tensor], shared: Sequence[Tensor] | None) -> None:
    """Raise for graphs that allow one backward pass only."""
    names = {type(node).__name__ for node in nodes_below(tensors)}
    if "CheckpointFunctionBackward" in names:
        raise UsageError(
            "wrt=parameters walks the graph once per task, which reentrant activation checkpointing "
            "does not allow; pass use_reentrant=False to checkpoint, or use wrt=features"
        )
    sharded = any(type(tensor).__name__ == "DTensor" for tensor in shared or ())
    if sharded or names & {"RegisterPostBackwardFunctionBackward", "_PostBackwardBackward"}:
        raise UsageError(
            "wrt=parameters walks the graph once per task, and FSDP's hooks allow one walk; use "
            "wrt=features with method(features), or DDP"
        )
