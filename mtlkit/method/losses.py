"""The losses of one step: averaged over the processes, and weighed by the parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.guards.steps import in_backward
from mtlkit.engine.processes import Processes, processes_of
from mtlkit.engine.step import pick
from mtlkit.errors import UsageError, unknown_name
from mtlkit.method.aggregator import GradientAggregator

Losses = Mapping[str, Tensor | None] | Sequence[Tensor | None]


def weigh(
    values: Tensor,
    present: tuple[int, ...],
    parts: Iterable[GradientAggregator],
    *,
    finite: Tensor | None = None,
    commit: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Let the parts weigh the losses, left to right, and keep their new state if ``commit``.

    Returns the (P,) product of their weights, without gradients, and what is added to the total:
    penalties, and the gradients of learned weights. Each is None where no part gives one.

    Learned weights get their gradient from these averaged losses, so that it is the same on every
    process, whether or not gradients are averaged later.

    Args:
        values: (P,) losses of the present tasks, averaged over the processes.
        present: indices of these tasks.
        parts: those that weigh losses.
        finite: whether the step may change the state; by default, whether the losses are finite.
        commit: keep the parts' new state.
    """
    factors: Tensor | None = None
    extra: Tensor | None = None
    if not present:
        return factors, extra
    finite = torch.isfinite(values).all() if finite is None else finite
    for part in parts:
        state = part.read(present)
        weights, new = part.weigh_losses(values, state)
        weights = weights.to(values.dtype, copy=True)  # it may be the state, which changes below
        penalty = part.loss_penalty(values, state)
        if weights.requires_grad:
            learned = (weights * values).sum()
            extra = _add(extra, learned - learned.detach())
        if penalty is not None:
            extra = _add(extra, penalty.to(values.dtype))
        if commit and new is not state:
            if in_backward():
                raise UsageError(
                    f"a checkpoint computes total(losses) again, and {part} remembers losses: call "
                    "total outside of the checkpoint"
                )
            usable = finite & torch.isfinite(weights).all() & new.is_finite()
            part.commit(state, new, present, usable)
        weights = weights.detach()
        values = values * weights
        factors = weights if factors is None else factors * weights
    return factors, extra


def _add(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total + term


def exchange(
    losses: Mapping[int, Tensor], tasks: int, processes: Processes, device: torch.device
) -> tuple[tuple[int, ...], Tensor]:
    """The tasks that have a loss on some process, and the losses' means over the processes."""
    present = tuple(losses)
    double = any(loss.dtype == torch.float64 for loss in losses.values())
    if processes.alone and not losses:
        return present, torch.zeros(0, device=device)
    # losses, presence, float64: processes without losses need the same dtype
    device = next((loss.device for loss in losses.values()), device)
    message = torch.zeros(3, tasks, dtype=torch.float64, device=device)
    for task, loss in losses.items():
        message[0, task] = loss.detach()
        message[1, task] = 1
        message[2, task] = double
    message = processes.sum(message)
    if len(present) < tasks:  # else nothing is read from the device
        present = tuple(torch.nonzero(message[1]).flatten().tolist())
        double = double or bool(message[2].any())
    means = pick(message[0] / processes.world, present)
    return present, means.to(torch.float64 if double else torch.float32)


def weigh_by_labels(
    losses: Mapping[str, Tensor | None],
    labels: Mapping[str, int],
    *,
    process_group: Any = None,
) -> dict[str, Tensor | None]:
    """Weigh each task's loss by this process's fraction of the task's labels.

    DDP averages over the processes. The mean of losses that are means over different numbers of labels
    is not the mean over all labels; with these weights it is. :class:`mtlkit.Trainer` does the same
    automatically. Every process must call this once per step, in the wrapped forward or before it, also
    one without labels. One process alone gets its losses back.

    Args:
        losses: mean over the labels of this process, by task; None, or absent, without labels.
        labels: number of labels on this process, by task: every task, in the same order everywhere.
        process_group: that of the replicas; None means all processes.

    Example:
        >>> weigh_by_labels({"a": torch.tensor(2.0)}, {"a": 8, "b": 0})
        {'a': tensor(2.)}
    """
    for name in losses:
        if name not in labels:
            raise unknown_name("task in labels", str(name), labels)
    processes = processes_of(process_group)
    if processes.alone:
        return dict(losses)
    device = next((loss.device for loss in losses.values() if loss is not None), None)
    own = torch.tensor(list(labels.values()), dtype=torch.float64, device=device or processes.device)
    factors = own * processes.world / processes.sum(own.clone()).clamp(min=1)
    weighed = dict(zip(labels, factors, strict=True))
    return {
        name: None if loss is None else loss * weighed[name].to(loss.dtype)
        for name, loss in losses.items()
    }
