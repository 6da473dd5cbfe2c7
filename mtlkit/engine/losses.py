"""The node at the losses: for models without a feature to fork.

Its backward takes one backward pass through the graph of each loss, merges the gradients of the shared
parameters and returns those of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.accumulation import Row
from mtlkit.engine.graph import retains_graph
from mtlkit.engine.guards.parameters import check_graphs
from mtlkit.engine.parameters import (
    add_up,
    averaged,
    loss_parameters,
    reach,
    rows_of_losses,
    undelivered,
)
from mtlkit.engine.processes import Processes
from mtlkit.engine.step import Hooks, divisor, merge_parameters


def join(
    losses: Sequence[Tensor | None], values: Tensor, hooks: Hooks, processes: Processes, *, merge: bool
) -> Tensor:
    """The sum of the losses, whose backward merges the tasks' gradients of the shared parameters.

    Args:
        losses: one scalar per task, None for a task without labels.
        values: (K,) values of the losses of the step, averaged over the processes; NaN for absent tasks.
        hooks: what the method gives the engine.
        processes: those that share the step.
        merge: False keeps the gradients for a later call.
    """
    given = [loss for loss in losses if loss is not None]
    shared, others = loss_parameters(given, hooks.shared, processes)
    known = {id(tensor) for tensor in shared}
    shared += [tensor for tensor in hooks.kept.tensors if id(tensor) not in known]
    others = [tensor for tensor in others if id(tensor) not in {id(kept) for kept in hooks.kept.tensors}]
    facts = (tuple(losses), values, len(shared), processes, merge)
    total: Tensor = _LossNode.apply(hooks, facts, *hooks.learned, *shared, *others)
    return total


class _LossNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hooks: Hooks, facts: Any, *tensors: Tensor) -> Tensor:
        # the losses keep their graphs for the backward; the node itself is no part of these
        losses, values, *_ = ctx.facts = facts
        ctx.hooks, ctx.parameters = hooks, tensors[len(hooks.learned) :]
        given = [loss.detach() for loss in losses if loss is not None]
        total: Tensor = sum(given, values.new_zeros(()))
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        with torch.autocast(scale.device.type, enabled=False):
            learned, gradients = _merge_losses(ctx, scale)
        return None, None, *learned, *gradients


def _merge_losses(ctx: Any, scale: Tensor) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients of the learned parameters and of all others; autograd casts them."""
    hooks, parameters = ctx.hooks, ctx.parameters
    losses, values, count, processes, merge = ctx.facts
    check_graphs(losses)
    if not retains_graph():  # then the backward passes free the graphs
        ctx.facts = (None, values, count, processes, merge)
    rows: dict[int, Row] = rows_of_losses(losses, parameters, scale)
    others = [add_up(row[i] for row in rows.values()) for i in range(count, len(parameters))]
    shared = parameters[:count]
    rows = {task: row[:count] for task, row in rows.items()}
    scale = divisor(scale)
    if not merge:
        hooks.kept.add(shared, rows, scale, values)
        return [None] * len(hooks.learned), [*undelivered(shared), *others]
    if hooks.kept.batches:
        hooks.kept.add(shared, rows, scale, values)
        rows, scale, values = hooks.kept.take(shared)
    reached = reach(rows, hooks.tasks, count, processes, scale)
    columns = (reached.sum(dim=0) > 1).nonzero().flatten().tolist()  # that several tasks reach
    apart = set(range(count)).difference(columns)
    own = {i: add_up(row[i] for row in rows.values()) for i in apart}
    merging = averaged(rows, reached, shared, columns, processes)
    merged, learned = merge_parameters(merging, hooks, scale, values)
    own |= dict(zip(columns, merged, strict=True))
    return learned, [*(own[i] for i in range(count)), *others]
