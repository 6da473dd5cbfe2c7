"""The node at the features: where shared features fork into K tasks, and their gradients are merged.

Forward, every task gets its own view. Backward, autograd calls the node once, when all task gradients
have arrived, and it returns one gradient. So a step is one ordinary ``backward()``, and whatever hooks
into autograd (DDP, GradScaler, checkpointing, compilers) sees an ordinary graph. Models without such
features have a node at the losses (:mod:`mtlkit.engine.losses`).

Besides the K views a fork returns an **anchor**: zeros that :class:`Report` adds to the total. Its
gradient brings the factor by which the caller scaled the loss (GradScaler, accumulation), so that a
method sees true gradient norms, and the losses of this very step. And it makes the node run on a
process without any label in this batch, where the other processes would wait for it forever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from mtlkit.engine.compiled_merge import merge_compiled
from mtlkit.engine.gradients import Gradients, TensorList
from mtlkit.engine.guards.steps import IN_PLACE, Fork, refuse_features
from mtlkit.engine.parameters import merge_below, parameters_below
from mtlkit.engine.step import (
    ABSENT,
    ELSEWHERE,
    HERE,
    Hooks,
    divisor,
    gradients_of_fork,
    merge,
    reported_losses,
    scatter,
    step_of,
)
from mtlkit.errors import UsageError


def fork(features: Any, hooks: Hooks, record: Fork) -> tuple[list[Any], Tensor | None]:
    """K views of ``features`` whose gradients will be merged, and the anchor.

    The anchor is None where nothing requires a gradient.
    """
    leaves, rebuild = flatten_features(features)
    # not by id(), for which a compiler that meets the features as inputs would recompile every step
    if not leaves or any(one is other for one, other in combinations(leaves, 2)):
        refuse_features(leaves)
    forking = hooks.forking
    held: tuple[Tensor, ...] = () if forking is None else forking.held()
    owned = [*(() if forking is None else forking.owned()), *hooks.learned, *hooks.weighing]
    # parameters that a fork applies to the features need the node, also below a frozen backbone
    inputs = leaves if forking is None else [*leaves, *owned]
    if not any(tensor.requires_grad for tensor in inputs):
        if forking is None and not torch.compiler.is_compiling():
            record.frozen = [(leaf, leaf._version) for leaf in leaves if not leaf.is_inference()]  # noqa: SLF001
        return fork_unrecorded(features, forking, hooks.tasks), None
    shared: list[Tensor] = []
    direct = False
    if hooks.over_parameters:
        shared, direct = parameters_below(leaves, hooks.shared, record.processes)
    frozen = tuple(not leaf.requires_grad for leaf in leaves)
    layout = _Layout(len(leaves), len(held), len(owned), len(shared), direct, frozen)
    anchor, *flat = _FeatureNode.apply(hooks, record, layout, *leaves, *held, *owned, *shared)
    count = len(leaves)
    return [rebuild(flat[k * count : (k + 1) * count]) for k in range(hooks.tasks)], anchor


def fork_unrecorded(features: Any, forking: Any, tasks: int = 0) -> list[Any]:
    """K views of ``features`` without a node: in evaluation, or below a frozen backbone."""
    leaves, rebuild = flatten_features(features)
    if forking is None:
        return [features] * tasks
    return [rebuild(view) for view in forking.fork(leaves, *forking.held())]


@dataclass(frozen=True)
class _Layout:
    """How many of the node's inputs are features, held tensors, owned and shared parameters."""

    features: int
    held: int
    owned: int
    shared: int
    direct: bool
    """Whether the merged gradient goes to the shared parameters, past the backbone's backward."""
    frozen: tuple[bool, ...]
    """Which features need no gradient; they are not merged, unless a fork rotates them."""


class _FeatureNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hooks: Hooks, record: Fork, layout: _Layout, *tensors: Tensor) -> Any:
        leaves = list(tensors[: layout.features])
        held = tensors[layout.features : layout.features + layout.held]
        ctx.hooks, ctx.record, ctx.layout = hooks, record, layout
        ctx.device = leaves[0].device
        # to compute in: the same on every process, also on one without any gradient
        double = any(leaf.dtype in (torch.float64, torch.complex128) for leaf in leaves)
        ctx.wide = torch.float64 if double else torch.float32
        ctx.set_materialize_grads(False)
        # not saved: what saved-tensor hooks give back would be other tensors
        ctx.shared = tensors[len(tensors) - layout.shared :] if layout.shared else ()
        ctx.save_for_backward(*(leaves if layout.shared else ()), *held)
        anchor = torch.zeros(1 + 2 * hooks.tasks, dtype=ctx.wide, device=ctx.device)
        given = [leaves] * hooks.tasks if hooks.forking is None else hooks.forking.fork(leaves, *held)
        views, constant = [], []
        for view in given:
            for leaf, original, frozen in zip(view, leaves, layout.frozen, strict=True):
                views.append(leaf.view_as(leaf) if leaf is original else leaf)
                if (frozen and leaf is original) or not (leaf.is_floating_point() or leaf.is_complex()):
                    constant.append(views[-1])
        ctx.mark_non_differentiable(*constant)
        return anchor, *views

    @staticmethod
    def backward(ctx: Any, report: Tensor | None, *flat: Tensor | None) -> Any:
        with torch.autocast(ctx.device.type, enabled=False):
            features, owned, shared = _merge_arrived(ctx, report, flat)
        owned = [*owned, *[None] * len(ctx.hooks.weighing)]
        return None, None, None, *features, *[None] * ctx.layout.held, *owned, *shared


# autograd's error for an in-place change of a view has this name, and nothing else of ours
_FeatureNode._backward_cls.__name__ = f"{IN_PLACE}. It"  # noqa: SLF001

Grads = Sequence[Tensor | None]


def _merge_arrived(
    ctx: Any, report: Tensor | None, flat: tuple[Tensor | None, ...]
) -> tuple[Grads, Grads, Grads]:
    """Gradients of the features, of the owned and of the shared parameters; autograd casts them."""
    hooks, layout, record, count = ctx.hooks, ctx.layout, ctx.record, ctx.layout.features
    # compiled heads bring zeros for a task without a loss, which is left out
    given = range(hooks.tasks) if report is None or record.given is None else record.given
    rows = {task: list(flat[task * count : (task + 1) * count]) for task in given}
    arrived = {k: row for k, row in rows.items() if any(gradient is not None for gradient in row)}
    hooks.guards.before_merge(ctx, hooks, record, report is not None, arrived)
    saved = ctx.saved_tensors  # once: a checkpoint does not give them twice
    if hooks.forking is not None:
        arrived = hooks.forking.pull_back(arrived, *saved[len(saved) - layout.held :])
    grads = Gradients(arrived, ctx.wide)
    if torch.compiler.is_compiling():
        return *merge_compiled(grads, report, hooks, record.processes), ()
    losses = None if report is None else reported_losses(report)  # None: not through ``total``
    step = step_of(
        grads.gram().to(ctx.device),
        grads.tasks,
        tasks=hooks.tasks,
        scale=None if report is None else divisor(report[0]),
        losses=losses,
        cross=grads.cross_gram() if hooks.cross_gram and not layout.shared else None,
        processes=record.processes,
    )
    owned: TensorList = []
    if hooks.forking is not None:
        units = scatter(step.units, step.present, step.tasks, fill=0.0) if step.present else step.units
        owned = gradients_of_fork(hooks.forking, grads.rows, units, step.processes, step)
    if layout.shared:
        features = saved[: layout.features]
        merged, learned, shared = merge_below(
            features, ctx.shared, grads, step, losses, hooks, record, direct=layout.direct
        )
    else:
        hooks.begin()
        (merged, learned), shared = merge(grads, step, hooks), []
    return merged or [None] * layout.features, [*owned, *learned], shared


class Report(torch.autograd.Function):
    """A zero to be added to the total, which hands losses and presence to the node of ``anchor``."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, losses: Tensor, present: tuple[int, ...]) -> Tensor:
        """The zero, for (K,) losses, NaN for absent tasks, and the tasks that this process has."""
        presence = torch.where(torch.isnan(losses), ABSENT, ELSEWHERE)
        for task in present:
            presence[task] = HERE
        known = torch.where(presence == ABSENT, 0.0, losses)  # NaN would alarm detect_anomaly
        ctx.save_for_backward(torch.cat([known, presence]).to(anchor.dtype))
        return torch.zeros((), dtype=anchor.dtype, device=anchor.device)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        """What the node reads: the factor of the total, the losses, and where the tasks have one."""
        (report,) = ctx.saved_tensors
        return torch.cat([scale.reshape(1), report]), None, None


def flatten_features(features: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Tensors of a nested list, tuple or dict, and the function that puts others in their place."""
    if isinstance(features, Tensor | Proxy):  # a proxy stands for a tensor while fuse traces a network
        return [features], lambda leaves: leaves[0]  # type: ignore[list-item]
    return _flatten_nested(features)


def _flatten_nested(features: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    if features is None:
        return [], lambda leaves: None
    if isinstance(features, Mapping):
        children = [flatten_features(item) for item in features.values()]
    elif isinstance(features, tuple | list):
        children = [flatten_features(item) for item in features]
    else:
        raise UsageError(
            "features must be a tensor, or a nested list, tuple or dict of tensors, "
            f"not {type(features).__name__}"
        )

    def rebuild(values: Sequence[Tensor]) -> Any:
        items, start = [], 0
        for child, build in children:
            items.append(build(values[start : start + len(child)]))
            start += len(child)
        if isinstance(features, Mapping):
            kind = OrderedDict if isinstance(features, OrderedDict) else dict
            return kind(zip(features, items, strict=True))
        if hasattr(features, "_fields"):  # a named tuple
            return type(features)(*items)
        return tuple(items) if isinstance(features, tuple) else items

    return [leaf for child, _ in children for leaf in child], rebuild
