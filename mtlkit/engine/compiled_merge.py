"""The merge of the features' gradients inside a graph of ``torch.compile``.

The compiler traces the Gram matrix and the weighted sum. The decision between the two is one operator,
see :mod:`mtlkit.engine.compiled`. All K tasks have gradients there, zeros for absent ones, and the
:class:`~mtlkit.engine.features.Report` says which are present.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtlkit.engine import compiled
from mtlkit.engine.gradients import Gradients, TensorList
from mtlkit.engine.processes import Processes
from mtlkit.engine.step import (
    HERE,
    Hooks,
    divisor,
    gradients_of_fork,
    pick,
    reported_losses,
    scatter,
    step_of,
)


def merge_compiled(
    grads: Gradients, report: Tensor | None, hooks: Hooks, processes: Processes
) -> tuple[TensorList, TensorList]:
    """Gradients of the features and of the owned parameters."""
    assert report is not None
    tasks, gram = hooks.tasks, grads.gram()
    if hooks.merge is None:
        sizes = [tasks, tasks, *(parameter.numel() for parameter in hooks.learned)]
        cross = grads.cross_gram() if hooks.cross_gram else gram[:0]
        decided = compiled.call(hooks.handle, sum(sizes), gram, report, cross)
        weights, units, *learned = torch.split(decided, sizes)
        merged = grads.weighted(weights)
        pairs = zip(learned, hooks.learned, strict=True)
        own: TensorList = [gradient.reshape(p.shape).to(p.dtype) for gradient, p in pairs]
    else:
        matrix = grads.matrix()
        size = matrix.shape[1]
        decided = compiled.call(hooks.handle, size + tasks, gram, report, matrix)
        vector, units = torch.split(decided, [size, tasks])
        merged, own = grads.split(vector), []
    if hooks.forking is None:
        return merged, own
    forked = gradients_of_fork(hooks.forking, grads.rows, units, processes, step=None)
    return merged, [*forked, *own]


def decide_compiled(
    hooks: Hooks, processes: Processes, gram: Tensor, report: Tensor, extra: Tensor
) -> Tensor:
    """Compute what the operator of a compiled node returns, as outside of a compiled graph.

    Args:
        hooks: what the method gives the engine.
        processes: those that share the step.
        gram: (K, K) inner products, zero for absent tasks.
        report: scale, losses and presence, see :class:`~mtlkit.engine.features.Report`.
        extra: products of independent samples, or the (K, N) gradients if the merge needs them whole.

    Returns:
        (K,) weights or the (N,) merged gradient, then (K,) factors of the rotations' gradients, then the
        gradients of the learned parameters.
    """
    tasks = hooks.tasks
    local = tuple(torch.nonzero(report[1 + tasks :] == HERE).flatten().tolist())
    scale = report[0]
    if not local and not scale.any():  # not through total: every task counts
        local, scale = tuple(range(tasks)), torch.ones_like(scale)
    whole = hooks.merge is not None
    cross = None
    if hooks.cross_gram:
        cross = torch.cat([pick(pick(extra[:-1], local).T, local).T, extra[-1:, : len(local)]])
    step = step_of(
        pick(pick(gram, local).T, local).T,
        local,
        tasks=tasks,
        scale=divisor(scale),
        losses=reported_losses(report),
        cross=cross,
        processes=processes,
    )
    learned = [g.reshape(-1) for g in hooks.learn(step, "") if g is not None]
    hooks.begin()
    if not step.present:
        merged = gram.new_zeros(extra.shape[1] if whole else tasks)
        units = gram.new_zeros(tasks)
    else:
        units = scatter(step.units, step.present, tasks, fill=0.0)
        if hooks.merge is not None:
            matrix = pick(extra, step.present) / step.unit
            merged = hooks.merge(matrix, step, ()) * step.unit
        else:
            merged = scatter(hooks.weigh(step), step.present, tasks, fill=0.0)
    return torch.cat([x.to(gram.dtype) for x in (merged, units, *learned)])
