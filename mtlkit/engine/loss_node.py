"""The junction at the losses: the autograd node of models without a feature to fork.

Its backward walks through the graph of each loss, merges the gradients of the shared parameters and
returns those of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.graph import retains_graph
from mtlkit.engine.guards import check_walk
from mtlkit.engine.merger import Merger
from mtlkit.engine.parameter_rows import LossParameters, LossRows, split_parameters
from mtlkit.engine.step import measure_rows


def join_losses(method: Merger, losses: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """The sum of the losses, whose backward merges the tasks' gradients of the shared parameters.

    Args:
        method: what merges them.
        losses: one scalar per task, None for a task without labels.
        values: (K,) values of the losses of the step, averaged over the processes.
    """
    given = [loss for loss in losses if loss is not None]
    parameters = split_parameters(given, method.shared, method.processes)
    total: Tensor = _LossJunction.apply(
        method, tuple(losses), values, parameters, *method.owned(), *parameters.all
    )
    return total


class _LossJunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        method: Any,
        losses: tuple[Tensor | None, ...],
        values: Tensor,
        parameters: LossParameters,
        *tensors: Tensor,
    ) -> Tensor:
        # the losses keep their graphs for the backward to walk; the node itself is no part of these
        ctx.method, ctx.losses, ctx.values, ctx.parameters = method, losses, values, parameters
        given = [loss.detach() for loss in losses if loss is not None]
        return sum(given, values.new_zeros(()))

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        with torch.autocast(scale.device.type, enabled=False):
            return _LossJunction.merge(ctx, scale)

    @staticmethod
    def merge(ctx: Any, scale: Tensor) -> Any:
        method, losses = ctx.method, ctx.losses
        check_walk(losses)
        if not retains_graph():  # then the walks free the graphs
            ctx.losses = None
        processes = method.processes
        rows = LossRows(losses, ctx.parameters, scale, processes)
        step = measure_rows(
            rows.shared, tasks=len(losses), scale=scale, losses=ctx.values, processes=processes
        )
        owned = method.own_gradients(step)
        return (None, None, None, None, *owned, *rows.deliver(method.merge_step(step)))
