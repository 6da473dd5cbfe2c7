"""The junction: one autograd node where the gradients of K tasks are merged.

It stands where the shared features fork into K tasks; models without such features have one at the
losses (:mod:`mtlkit.engine.loss_node`). Forward, every task gets its own view. Backward, autograd calls
the node once, when all task gradients have arrived, and it returns one gradient. So a step is one
ordinary ``backward()``, and whatever hooks into autograd (DDP, GradScaler, checkpointing, compilers)
sees an ordinary graph.

Besides the K views a fork returns an **anchor**: 1 + K zeros that :class:`Report` adds to the total.
Its gradient is the factor by which the caller scaled the loss (GradScaler, accumulation), so that a
method sees true gradient norms, and the values of the losses of this very step. And it makes the node
run on a process without any label in this batch, where the other processes would wait for it forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.gradients import Gradients
from mtlkit.engine.guards import Fork, check_arrivals
from mtlkit.engine.merger import Leaves, Merger
from mtlkit.engine.nesting import flatten_features
from mtlkit.engine.parameter_rows import parameters_below, rows_through_features
from mtlkit.engine.step import measure
from mtlkit.errors import UsageError


def fork(method: Merger, features: Any, record: Fork) -> tuple[list[Any], Tensor | None]:
    """K views of ``features`` whose gradients ``method`` will merge, and the anchor.

    The anchor is None where nothing requires a gradient.
    """
    leaves, rebuild = flatten_features(features)
    if not leaves:
        raise UsageError("the features hold no tensor; give the backbone's output")
    owned = method.owned()
    # parameters that a fork applies to the features need the junction, also below a frozen backbone
    inputs = leaves if method.fork_part is None else [*leaves, *owned]
    if not any(tensor.requires_grad for tensor in inputs):
        return fork_unrecorded(method, features), None
    shared, direct = parameters_below(leaves, method.shared) if method.wrt_parameters else ([], False)
    frozen = tuple(not leaf.requires_grad for leaf in leaves)
    layout = _Layout(len(leaves), len(owned), len(shared), direct, frozen)
    anchor, *flat = _FeatureJunction.apply(method, record, layout, *leaves, *owned, *shared)
    count = len(leaves)
    return [rebuild(flat[k * count : (k + 1) * count]) for k in range(len(method.tasks))], anchor


def fork_unrecorded(method: Merger, features: Any) -> list[Any]:
    """K views of ``features`` without a junction: in evaluation, or below a frozen backbone."""
    leaves, rebuild = flatten_features(features)
    return [rebuild(view) for view in _views(method, leaves)]


def _views(method: Merger, leaves: list[Tensor]) -> list[list[Tensor]]:
    if method.fork_part is None:
        return [leaves] * len(method.tasks)
    return method.fork_part.fork(leaves)


@dataclass(frozen=True)
class _Layout:
    """How many of the node's inputs are features, owned parameters and shared parameters."""

    features: int
    owned: int
    shared: int
    direct: bool
    """Whether the merged gradient goes to the shared parameters, past the backbone's backward."""
    frozen: tuple[bool, ...]
    """Which features need no gradient; they are not merged, unless a fork rotates them."""


class _FeatureJunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, method: Any, record: Fork, layout: _Layout, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        leaves = list(tensors[: layout.features])
        ctx.method, ctx.record, ctx.layout = method, record, layout
        ctx.dtypes, ctx.device = [leaf.dtype for leaf in leaves], leaves[0].device
        # to compute in: the same on every process, also on one without any gradient
        ctx.wide = torch.float64 if torch.float64 in ctx.dtypes else torch.float32
        ctx.set_materialize_grads(False)
        if layout.shared:
            ctx.save_for_backward(*leaves, *tensors[layout.features + layout.owned :])
        anchor = torch.zeros(1 + len(method.tasks), dtype=ctx.wide, device=ctx.device)
        views, constant = [], []
        for view in _views(method, leaves):
            for leaf, given, frozen in zip(view, leaves, layout.frozen, strict=True):
                views.append(leaf.view_as(leaf) if leaf is given else leaf)
                if (frozen and leaf is given) or not leaf.is_floating_point():
                    constant.append(views[-1])
        ctx.mark_non_differentiable(*constant)
        return anchor, *views

    @staticmethod
    def backward(ctx: Any, anchor: Tensor | None, *flat: Tensor | None) -> Any:
        with torch.autocast(ctx.device.type, enabled=False):
            return _FeatureJunction.merge(ctx, anchor, flat)

    @staticmethod
    def merge(ctx: Any, anchor: Tensor | None, flat: tuple[Tensor | None, ...]) -> Any:
        method, layout, processes = ctx.method, ctx.layout, ctx.record.processes
        count = layout.features
        arrived: dict[int, Leaves] = {}
        for task in range(len(method.tasks)):
            row = list(flat[task * count : (task + 1) * count])
            if any(gradient is not None for gradient in row):
                arrived[task] = row
        check_arrivals(method, ctx.record, anchor is not None, tuple(arrived))
        if anchor is None:  # a backward that did not start from total(losses)
            example = next(g for row in arrived.values() for g in row if g is not None)
            scale, losses = torch.ones((), device=example.device), None
        else:
            scale, losses = anchor[0], anchor[1:]
        if method.fork_part is not None:
            arrived = method.fork_part.pull_back(arrived)
        walk = None
        if layout.shared:
            saved = ctx.saved_tensors
            walk = rows_through_features(saved[:count], saved[count:], processes)
        step = measure(
            Gradients(arrived, ctx.wide),
            tasks=len(method.tasks),
            scale=scale,
            losses=losses,
            processes=processes,
            parameter_rows=walk,
            direct=layout.direct or not layout.shared,
        )
        if not (processes.alone or ctx.record.wrapped or torch.compiler.is_compiling()):
            method.lone.compare(ctx, processes, method.owned())
        owned = method.own_gradients(step) if layout.owned else ()
        merged = method.merge_step(step)
        parameters: Leaves = [None] * layout.shared
        if layout.direct:
            return (None, None, None, *[None] * count, *owned, *(merged or parameters))
        features: Leaves = [None] * count
        for index, gradient in enumerate(merged):
            features[index] = None if gradient is None else gradient.to(ctx.dtypes[index])
        return (None, None, None, *features, *owned, *parameters)


class Report(torch.autograd.Function):
    """A zero to be added to the total, which hands the (K,) losses to the junction of ``anchor``."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, losses: Tensor) -> Tensor:
        """The zero."""
        ctx.save_for_backward(losses.to(anchor.dtype))
        return torch.zeros((), dtype=anchor.dtype, device=anchor.device)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None]:
        """What the junction reads: the factor of the total, and the losses."""
        (losses,) = ctx.saved_tensors
        return torch.cat([scale.reshape(1), losses]), None
