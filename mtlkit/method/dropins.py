"""A merged backward for heads that are computed already: ``mtl_backward`` and ``backward``.

They replace TorchJD's functions of the same names. :func:`mtl_backward` forks the features after
the fact: a proxy of each loss is computed from the task's view of the features, and its backward runs
through the task's real graph from the loss down to the features and no further. All the rest (loss
parts, absent tasks, processes, scaling) is that of ``method(features)`` and ``method.total(losses)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.engine import sharded
from mtlkit.engine.features import flatten_features
from mtlkit.engine.graph import nodes_below
from mtlkit.engine.guards.parameters import check_shards_mergeable, refuse_deepspeed
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.groups import Groups, Shared
from mtlkit.method.losses import Losses
from mtlkit.method.method import Method, align

Edge = tuple[Any, int]


def mtl_backward(
    losses: Losses,
    features: Any,
    method: Method,
    *,
    gradient: Tensor | None = None,
    retain_graph: bool = False,
) -> None:
    """Merge the tasks' gradients at ``features`` and accumulate all gradients into ``.grad``.

    The gradients are those of ``method(features)`` followed by ``method.total(losses).backward()``: the
    heads get the gradient of their own loss, what lies below the features gets the merged one. Each
    head gets one backward pass, and so does what lies below (K passes with ``wrt=parameters``).

    Args:
        losses: one scalar per task, in task order or by name; None, or an absent name, is a task
            without labels in this batch.
        features: what the heads were given: a tensor, or a nested list, tuple or dict of tensors.
        method: made by :func:`mtlkit.create_method`. One that rotates has to be there before the heads
            are computed, so it is refused.
        gradient: factor of the total, as in ``Tensor.backward``; with a ``GradScaler``, leave the losses
            as they are and give ``scaler.scale(torch.ones(()))``.
        retain_graph: keep the graph for another backward.

    Example:
        >>> import mtlkit
        >>> method = mtlkit.create_method("imtl_g", tasks=2)
        >>> z = torch.ones(3, requires_grad=True)
        >>> mtl_backward([z.sum(), 3 * z.sum()], features=z, method=method)
        >>> z.grad
        tensor([1.5000, 1.5000, 1.5000])
    """
    _check_method(method)
    if method.forking is not None:
        raise UsageError(
            f"{method} rotates the features before the heads see them, and here the heads have been "
            "computed: give them what method(features) returns and call method.total(losses).backward()"
        )
    given = align(losses, method.tasks)
    leaves, _ = flatten_features(features)
    if not leaves:
        raise UsageError("the features hold no tensor; give what the heads were given")
    _check_labels(method, given)
    passes = _plan(given, [leaf for leaf in leaves if leaf.requires_grad], retain_graph)
    with torch.enable_grad():
        views = method(features)
        proxies: list[Tensor | None] = [None] * len(views)
        for task, loss in given.items():
            proxies[task] = loss
            if task in passes:
                view = [leaf for leaf in flatten_features(views[task])[0] if leaf.requires_grad]
                proxies[task] = _ProxyLoss.apply(passes[task], *view, *passes[task].parameters)
        total = method.total(proxies)
    torch.autograd.backward(total, gradient, retain_graph=retain_graph)


def backward(
    losses: Losses,
    method: Method,
    parameters: Shared = None,
    *,
    merge: bool = True,
    gradient: Tensor | None = None,
    retain_graph: bool = False,
) -> None:
    """Merge the tasks' gradients of the parameters, for any model: ``method.total(losses).backward()``.

    A model that FSDP2 has sharded (``fully_shard``) gets one ordinary backward pass per task, and its
    shards are merged in ``.grad``; every process must call this in every step.

    Args:
        losses: one scalar per task, in task order or by name; None is a task without labels.
        method: made by :func:`mtlkit.create_method`, with ``wrt=parameters``.
        parameters: modules or parameters whose gradients are merged, or groups of these by name;
            without, those that were given to ``create_method`` as ``shared``, or all that several tasks
            reach.
        merge: False keeps the gradients of this micro-batch for a later call, as in ``method.total``.
        gradient: factor of the total, as in ``Tensor.backward``; see :func:`mtl_backward`.
        retain_graph: keep the graph for another backward.

    Example:
        >>> import mtlkit
        >>> weight = nn.Parameter(torch.ones(2))
        >>> method = mtlkit.create_method("mgda(wrt=parameters)", tasks=2, shared=[weight])
        >>> backward([2 * weight[0], weight[1]], method)
        >>> weight.grad
        tensor([0.4000, 0.8000])
    """
    _check_method(method)
    if parameters is not None and not method.wrt_parameters:
        raise SpecError(
            f"{method} does not merge gradients of parameters; create it with wrt=parameters, or leave "
            "`parameters` out"
        )
    given: Any = method._groups.given if parameters is None else parameters  # noqa: SLF001
    if isinstance(given, Mapping):
        given = {name: _listed(group) for name, group in given.items()}
    elif given is not None:
        given = _listed(given)
    refuse_deepspeed(given)
    if sharded.is_sharded(given) and method.wrt_parameters and method.training and not method.is_sum:
        _backward_sharded(losses, method, given, merge, gradient, retain_graph)
        return
    if parameters is not None:
        _set_shared(method, given)
    with torch.enable_grad():
        total = method.total(losses, merge)
    torch.autograd.backward(total, gradient, retain_graph=retain_graph)


def _backward_sharded(
    losses: Losses,
    method: Method,
    parameters: Any,
    merge: bool,
    gradient: Tensor | None,
    retain_graph: bool,
) -> None:
    """Run one backward pass per task over a model that FSDP2 has sharded."""
    check_shards_mergeable(method)
    parameters, modules = sharded.reshard(parameters)
    _set_shared(method, parameters)
    listed = sharded.listed(parameters)
    model = sharded.Sharded.of(method.shared or (), modules, method.parameters(), listed)
    present = model.complete(align(losses, method.tasks), method.tasks)
    with torch.enable_grad():
        weighed, values, extra = method._weigh_losses(present, model.processes, commit=merge)  # noqa: SLF001
    sharded.backward(
        weighed,
        values,
        extra,
        model,
        method._hooks(),  # noqa: SLF001
        merge=merge,
        scale=gradient,
        retain_graph=retain_graph,
    )


def _listed(parameters: Any) -> Any:
    """Parameters that can be read more than once, which a generator cannot; several modules as one."""
    if isinstance(parameters, nn.Module):
        return parameters
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    modules = [member for member in given if isinstance(member, nn.Module)]
    return nn.ModuleList(modules) if modules and len(modules) == len(given) else given


def _set_shared(method: Method, parameters: Any) -> None:
    """Name the shared parameters, unless they are those of the last call."""
    tensors = Groups.of(parameters, "all").tensors or []
    if method.shared is None or [*map(id, tensors)] != [*map(id, method.shared)]:
        method.set_shared(parameters)


def _check_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise SpecError(
            f"method must be a method made once by mtlkit.create_method, because it may remember "
            f"earlier steps; got {type(method).__name__}"
        )


def _check_labels(method: Method, losses: dict[int, Tensor]) -> None:
    missing = [name for task, name in enumerate(method.tasks) if task not in losses]
    if missing and not method.processes.alone:
        raise UsageError(
            f"task(s) {', '.join(missing)} have no labels on this process, and DDP would wait for the "
            "gradients of their heads: call method(features) and method.total(losses) inside the "
            "wrapped forward instead of mtl_backward"
        )


@dataclass(frozen=True)
class _Pass:
    """The backward pass from one loss down to the features."""

    loss: Tensor
    features: list[Tensor]
    parameters: list[Tensor]
    """Parameters that the loss depends on directly, not through the features: those of the head."""
    retain_graph: bool

    def gradients(self, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the features and the parameters, along paths that pass through no feature."""
        handles = [_block(feature) for feature in self.features if feature.grad_fn is not None]
        try:
            return torch.autograd.grad(
                self.loss,
                [*self.features, *self.parameters],
                scale.to(self.loss.dtype),
                retain_graph=self.retain_graph,
                allow_unused=True,
            )
        finally:
            for handle in handles:
                handle.remove()


class _ProxyLoss(torch.autograd.Function):
    """The value of a loss; its backward runs through the graph of the real loss."""

    @staticmethod
    def forward(ctx: Any, task_pass: _Pass, *tensors: Tensor) -> Tensor:
        ctx.task_pass = task_pass
        return task_pass.loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        return None, *ctx.task_pass.gradients(scale)


def _plan(losses: dict[int, Tensor], features: list[Tensor], retain_graph: bool) -> dict[int, _Pass]:
    """The backward passes of the tasks whose loss requires a gradient."""
    graphs = {k: _Graph(loss, features) for k, loss in losses.items() if loss.requires_grad}
    if features and graphs and not any(graph.reached for graph in graphs.values()):
        raise UsageError(
            "no loss depends on the features: give the very tensors that the heads read, not a copy. "
            "DDP with find_unused_parameters=True and torch.compile return copies of what lies within "
            "the wrapped model; call method(features) in its forward instead"
        )
    below = set(nodes_below(features))
    passed = {following for node in below for following, _ in node.next_functions}
    nested = any(_edge(feature)[0] in passed for feature in features)
    passes = {}
    for task, graph in graphs.items():
        others = [other.inner for k, other in graphs.items() if k != task]
        # a graph may be freed unless another pass goes through it
        keep = retain_graph or nested or not graph.inner.isdisjoint(set().union(below, *others))
        keep = keep or not graph.ends.keys().isdisjoint(below)
        passes[task] = _Pass(losses[task], features, list(graph.ends.values()), keep)
    return passes


class _Graph:
    """Autograd's graph from one loss down to the features.

    Attributes:
        inner: the nodes that keep tensors for their backward.
        ends: leaf tensors by their node; the features are not among them.
        reached: whether it leads to a feature.
    """

    def __init__(self, loss: Tensor, features: list[Tensor]) -> None:
        stops = {_edge(feature) for feature in features}
        self.inner: set[Any] = set()
        self.ends: dict[Any, Tensor] = {}
        self.reached = False
        stack = [_edge(loss)]
        while stack:
            edge = stack.pop()
            node = edge[0]
            if edge in stops:
                self.reached = True
            elif hasattr(node, "variable"):
                self.ends[node] = node.variable
            elif node not in self.inner:
                self.inner.add(node)
                stack += [(below, output) for below, output in node.next_functions if below is not None]


def _edge(tensor: Tensor) -> Edge:
    """Gradient edge of the tensor: the node and the number of its output."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    accumulate = tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    return accumulate, 0


def _block(feature: Tensor) -> Any:
    """Stop gradients at a feature; autograd has taken the feature's own gradient before."""
    output = feature.output_nr

    def stop(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if i == output else gradient for i, gradient in enumerate(gradients))

    return feature.grad_fn.register_prehook(stop)  # type: ignore[union-attr]
