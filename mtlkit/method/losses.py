"""The losses of one step: in task order, averaged over the processes, weighed by the parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mtlkit.engine.guards import in_backward
from mtlkit.engine.processes import Processes, processes_of
from mtlkit.engine.step import spread
from mtlkit.errors import SpecError, UsageError, unknown_name

if TYPE_CHECKING:
    from mtlkit.method.aggregator import GradientAggregator


def align(losses: Any, tasks: Sequence[str]) -> dict[int, Tensor]:
    """The losses that are given, by the task's number; each a scalar tensor."""
    if isinstance(losses, Mapping):
        named = {str(key): loss for key, loss in losses.items()}
        for key in named:
            if key not in tasks:
                raise unknown_name("task", key, tasks)
        given = [named.get(name) for name in tasks]
    elif isinstance(losses, Tensor):
        raise SpecError(
            f"losses must be a sequence or mapping of {len(tasks)} scalars, not one tensor of shape "
            f"{tuple(losses.shape)}: in one tensor, each task's backward would walk every task's graph"
        )
    elif not isinstance(losses, Iterable):
        raise SpecError(
            f"losses must be {len(tasks)} scalars in task order or by name ({', '.join(tasks)}), not "
            f"{type(losses).__name__}"
        )
    else:
        given = list(losses)
        if len(given) != len(tasks):
            raise SpecError(
                f"{len(given)} losses for {len(tasks)} tasks ({', '.join(tasks)}); give one per task, "
                "None for a task without labels, or a mapping by name"
            )
    for name, loss in zip(tasks, given, strict=True):
        if loss is not None and not isinstance(loss, Tensor):
            raise SpecError(
                f"the loss of task {name!r} is {type(loss).__name__}; expected a scalar tensor, or None "
                "for a task without labels"
            )
        if loss is not None and loss.dim() != 0:
            raise SpecError(
                f"the loss of task {name!r} has shape {tuple(loss.shape)}; expected a scalar: reduce "
                "it, for example with .mean()"
            )
    return {task: loss for task, loss in enumerate(given) if loss is not None}


@dataclass
class WeighedLosses:
    """The losses of this process after the parts have weighed them.

    Attributes:
        terms: by task; without gradients for the weights.
        extra: what is added to them: the parts' penalties and the gradients of learned weights.
        values: (K,) losses as they were given, averaged over ``processes``; NaN for absent tasks.
    """

    terms: dict[int, Tensor]
    extra: Tensor | None
    values: Tensor


def weigh(
    losses: dict[int, Tensor],
    parts: Sequence[GradientAggregator],
    processes: Processes,
    device: torch.device,
    *,
    recording: bool,
) -> WeighedLosses:
    """Let the parts weigh the losses, left to right, and keep their new state if ``recording``.

    The weights are functions of the averaged losses. Learned weights get their gradient from these
    too, so that it is the same on every process, whether or not gradients are averaged later.
    """
    tasks = len(parts[0].tasks)
    present, values = _average(losses, tasks, processes, device)
    current, factors, extra = values, None, None
    finite = torch.isfinite(values).all()
    for part in parts:
        if not present or "loss" not in part.roles:
            continue
        state = part.read_state(present)
        weights, new = part.weigh_losses(current, state)
        weights = weights.to(values.dtype, copy=True)  # it may be the state, which changes below
        if weights.requires_grad:
            learned = (weights * current).sum()
            extra = _add(extra, learned - learned.detach())
        penalty = part.loss_penalty(current, state)
        extra = extra if penalty is None else _add(extra, penalty.to(values.dtype))
        if recording and new is not state:
            if in_backward():
                raise UsageError(
                    f"a checkpoint computes total(losses) again, and {part} remembers losses: call "
                    "total outside of the checkpoint"
                )
            part.commit_state(
                state, new, present, finite & torch.isfinite(weights).all() & new.is_finite()
            )
        weights = weights.detach()
        current = current * weights
        factors = weights if factors is None else factors * weights
    terms = losses
    if factors is not None:
        by_task = dict(zip(present, factors, strict=True))
        terms = {task: by_task[task] * loss for task, loss in losses.items()}
    if len(present) < tasks:
        values = spread(values, present, tasks)
    return WeighedLosses(terms, extra, values)


def _add(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total + term


def _average(
    losses: dict[int, Tensor], tasks: int, processes: Processes, device: torch.device
) -> tuple[tuple[int, ...], Tensor]:
    """The tasks that have a loss on some process, and the losses' means over the processes."""
    present = tuple(losses)
    double = any(loss.dtype == torch.float64 for loss in losses.values())
    if processes.alone:
        dtype = torch.float64 if double else torch.float32
        values = [loss.detach().to(dtype) for loss in losses.values()]
        return present, torch.stack(values) if values else torch.zeros(0, device=device)
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
    means = message[0] / processes.world
    if len(present) < tasks:
        means = torch.stack([means[task] for task in present]) if present else means[:0]
    return present, means.to(torch.float64 if double else torch.float32)


def weigh_by_labels(
    losses: Mapping[str, Tensor | None],
    labels: Mapping[str, int],
    *,
    process_group: Any = None,
) -> dict[str, Tensor | None]:
    """Weigh each task's loss by this process's share of the task's labels.

    DDP averages over the processes. The mean of losses that are means over different numbers of labels
    is not the mean over all labels; with these weights it is. :class:`mtlkit.Trainer` does the same by
    itself. Every process must call this once per step, in the wrapped forward or before it, also one
    without labels. One process alone gets its losses back.

    Args:
        losses: mean over the labels of this process, by task; None, or absent, without labels.
        labels: number of labels on this process, by task: every task, in the same order everywhere.
        process_group: of the replicas; None means all processes.
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
