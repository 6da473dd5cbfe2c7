"""State that a method keeps for every pair of tasks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mtlkit.host import Matrix, readable
from mtlkit.junction import Step

__all__ = ["pick_pairs", "remember_pairs"]


def pick_pairs(state: Tensor, step: Step | None) -> Tensor:
    """(P, P) entries of the (K, K) ``state`` that belong to the present tasks."""
    if step is None or step.complete:
        return state
    present = list(step.present)
    return state[present][:, present]


def remember_pairs(buffer: Tensor, value: Matrix, step: Step) -> None:
    """Write (P, P) values into the (K, K) ``buffer``, if the step is finite."""
    if readable(buffer):
        if step.finite:
            everywhere = ... if step.complete else np.ix_(step.present, step.present)
            buffer.numpy()[everywhere] = value
        return
    new = torch.where(step.finite, torch.from_numpy(value).to(buffer), pick_pairs(buffer, step))
    if not step.complete:
        index = torch.tensor(step.present, device=buffer.device)
        new = buffer.index_put((index[:, None], index[None, :]), new)
    buffer.copy_(new)
