"""Gradients of the shared parameters, one backward pass per task, for ``wrt=parameters``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from mtlkit.engine.accumulation import Row
from mtlkit.engine.gradients import Gradients, TensorList, as_real
from mtlkit.engine.graph import leaves_below, needed_again
from mtlkit.engine.guards.parameters import check_indirect, check_kept, refuse_single_pass_graphs
from mtlkit.engine.guards.steps import Fork
from mtlkit.engine.processes import Processes
from mtlkit.engine.step import Hooks, Step, merge, merge_parameters, step_of
from mtlkit.errors import UsageError


def parameters_below(
    features: Sequence[Tensor], shared: Sequence[Tensor] | None, processes: Processes
) -> tuple[list[Tensor], bool]:
    """Parameters below the features that the rows are taken of, and whether these are all there are.

    Other leaf tensors that require a gradient are merged only if there is nothing else.

    If so, the merged row is their gradient and is handed to them directly: the backbone has K
    backward passes, not K + 1.
    """
    refuse_single_pass_graphs(features, shared)
    below = leaves_below(features)
    if shared is None:
        modules: list[Tensor] = [t for t in below if isinstance(t, nn.Parameter)]
        chosen = modules or (below if processes.alone else [])  # the others have other samples
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
    features: Sequence[Tensor], parameters: Sequence[Tensor], grads: Mapping[int, Row]
) -> dict[int, Row]:
    """One row per task: gradients of the parameters from those of the features."""
    rows: dict[int, Row] = {}
    for task, row in grads.items():
        pairs = [(z, g) for z, g in zip(features, row, strict=True) if g is not None and z.requires_grad]
        with _without_hooks(parameters):
            rows[task] = torch.autograd.grad(
                [z for z, _ in pairs],
                parameters,
                [g.to(z.dtype) for z, g in pairs],
                retain_graph=True,  # the backward that called the node frees the graph
                allow_unused=True,
            )
    return rows


def merge_below(
    features: Sequence[Tensor],
    parameters: Sequence[Tensor],
    grads: Gradients,
    step: Step,
    losses: Tensor | None,
    hooks: Hooks,
    record: Fork,
    *,
    direct: bool,
) -> tuple[TensorList, TensorList, TensorList]:
    """Gradients of the features, of the learned and of the shared parameters.

    Args:
        features: the features that were forked.
        parameters: the shared ones.
        grads: gradients of the features by task.
        step: what was measured at the features.
        losses: (K,) losses.
        hooks: what the method gives the engine.
        record: what is known of the fork.
        direct: whether the shared parameters are all that lies below the features.
    """
    rows: dict[int, Row] = rows_through_features(features, parameters, grads.rows)
    groups = hooks.groups(parameters)
    if not direct:
        check_indirect(hooks, record.merge and not hooks.kept.batches, len(groups))
    if not record.merge:
        hooks.kept.add(parameters, rows, step.scale, losses)
        return [], [None] * len(hooks.learned), undelivered(parameters)
    scale = step.scale
    if hooks.kept.batches:
        check_kept(hooks.kept.tensors, parameters)
        hooks.kept.add(parameters, rows, scale, losses)
        rows, scale, losses = hooks.kept.take(parameters)
        reached = reach(rows, hooks.tasks, len(parameters), record.processes, step.gram)
    elif len(groups) > 1:
        reached = reach(rows, hooks.tasks, len(parameters), record.processes, step.gram)
    else:  # nothing to exchange
        reached = torch.zeros(hooks.tasks, len(parameters), dtype=torch.bool)
        reached[list(step.present)] = True
    shared = averaged(rows, reached, parameters, range(len(parameters)), record.processes)
    if direct:
        merged, learned = merge_parameters(shared, hooks, scale, losses)
        return [], learned, merged
    # other parameters lie below the features too, so the features get the weighted gradient
    hooks.begin()
    step = step_of(shared.gram(), shared.tasks, tasks=hooks.tasks, scale=scale, losses=losses)
    merged, learned = merge(grads, step, hooks)
    return merged, learned, [None] * len(parameters)


def loss_parameters(
    losses: Sequence[Tensor], shared: Sequence[Tensor] | None, processes: Processes
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters below the losses: those to be merged if several tasks reach them, and the others.

    Without ``shared`` the first are all module parameters; other leaf tensors that require a gradient,
    such as the coordinates of a physics-informed network, are merged only if there is nothing else.
    """
    refuse_single_pass_graphs(losses, shared)
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
        chosen = list({id(tensor): tensor for tensor in shared if tensor.requires_grad}.values())
        reached = {id(tensor) for tensor in below}
        if below and reached.isdisjoint(id(tensor) for tensor in chosen):
            raise UsageError(
                "wrt=parameters: the losses reach none of the parameters in `shared`; pass the module "
                "that computes them, as it is used in the forward pass"
            )
        if processes.alone:  # others need the same everywhere, also what no loss of this one reaches
            chosen = [tensor for tensor in chosen if id(tensor) in reached]
    apart = {id(tensor) for tensor in chosen}
    return chosen, [tensor for tensor in below if id(tensor) not in apart]


def rows_of_losses(
    losses: Sequence[Tensor | None], parameters: Sequence[Tensor], scale: Tensor
) -> dict[int, Row]:
    """One row per task: gradients of the parameters, by one backward pass per loss."""
    local = {k: x for k, x in enumerate(losses) if x is not None and x.requires_grad}
    rows: dict[int, Row] = {}
    for (task, loss), retain in zip(local.items(), needed_again([*local.values()]), strict=True):
        with _without_hooks(parameters):
            rows[task] = torch.autograd.grad(
                loss, parameters, scale.to(loss.dtype), retain_graph=retain, allow_unused=True
            )
    return rows


def reach(rows: Mapping[int, Row], tasks: int, count: int, processes: Processes, like: Tensor) -> Tensor:
    """(K, count) whether a task reaches a parameter on any process, on the host."""
    reached = torch.zeros(tasks, count)
    for task, row in rows.items():
        reached[task] = torch.tensor([g is not None for g in row[:count]], dtype=torch.float32)
    if not processes.alone:
        reached = processes.sum(reached.to(like.device)).cpu()
    return reached > 0


def averaged(
    rows: dict[int, Row],
    reached: Tensor,
    parameters: Sequence[Tensor],
    columns: Sequence[int],
    processes: Processes,
) -> Gradients:
    """Rows of the ``columns``, averaged over the processes, of the tasks that reach any of them.

    Args:
        rows: those of this process; they are taken away, so that each can be freed when it is merged.
        reached: (K, n) which task reaches which parameter on some process.
        parameters: all parameters that the rows are of.
        columns: places of those that are wanted.
        processes: those whose rows are averaged.
    """
    chosen = [parameters[i] for i in columns]
    double = any(p.dtype in (torch.float64, torch.complex128) for p in chosen)
    found: dict[int, Row] = {}
    for task in reached[:, list(columns)].any(dim=1).nonzero().flatten().tolist():
        own = rows.pop(task, [None] * len(parameters))
        row = [own[i] for i in columns]
        if not processes.alone:
            wanted = [bool(reached[task, i]) for i in columns]
            row = _average(row, chosen, wanted, processes)
        found[task] = row
    rows.clear()
    return Gradients(found, torch.float64 if double else torch.float32, chosen)


def _average(
    row: Row, parameters: Sequence[Tensor], wanted: Sequence[bool], processes: Processes
) -> list[Tensor | None]:
    """One row, averaged over the processes in one message; None where it is not wanted."""
    filled = [
        as_real(torch.zeros_like(p) if g is None else g)
        for p, g, needed in zip(parameters, row, wanted, strict=True)
        if needed
    ]
    flat = processes.mean(torch.cat([g.reshape(-1) for g in filled]))
    pieces = iter(torch.split(flat, [g.numel() for g in filled]))
    return [
        _shaped(next(pieces), p) if needed else None
        for p, needed in zip(parameters, wanted, strict=True)
    ]


def _shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    if parameter.is_complex():
        return torch.view_as_complex(flat.view(*parameter.shape, 2))
    return flat.view(parameter.shape)


def add_up(gradients: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of what is not None."""
    terms = [gradient for gradient in gradients if gradient is not None]
    return sum(terms[1:], terms[0]) if terms else None


def undelivered(parameters: Sequence[Tensor]) -> TensorList:
    """Gradients of a micro-batch that is kept: none, or zeros where a hook would be called with None."""
    return [torch.zeros_like(p) if p._backward_hooks else None for p in parameters]  # noqa: SLF001


@contextlib.contextmanager
def _without_hooks(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Keep the parameters' own hooks for the merged gradient, instead of running them on every row."""
    known = (p._backward_hooks for p in parameters)  # noqa: SLF001  no public name
    registered = [hooks for hooks in known if hooks]
    copies = [dict(hooks) for hooks in registered]
    for hooks in registered:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, copy in zip(registered, copies, strict=True):
            hooks.update(copy)
