"""State that a method keeps for every pair of tasks."""

from __future__ import annotations

import torch
from torch import Tensor

from mtlkit.junction import Step, readable

__all__ = ["pick_pairs", "remember_pairs"]


def pick_pairs(state: Tensor, step: Step | None) -> Tensor:
    """(P, P) entries of the (K, K) ``state`` that belong to the present tasks."""
    if step is None or step.complete:
        return state
    present = list(step.present)
    return state[present][:, present]


def remember_pairs(buffer: Tensor, value: Tensor, step: Step) -> None:
    """Write (P, P) values into the (K, K) ``buffer``, if the step is finite."""
    if readable(buffer):
        if not step.finite:
            return
        new = value
    else:
        new = torch.where(step.finite, value.to(buffer), pick_pairs(buffer, step))
    if not step.complete:
        index = torch.tensor(step.present, device=buffer.device)
        new = buffer.index_put((index[:, None], index[None, :]), new)
    buffer.copy_(new)
