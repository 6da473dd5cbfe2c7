"""One step of a method that weighs losses, without any network."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import mtlkit

__all__ = ["step"]


def step(
    method: mtlkit.GradientAggregator, values: Sequence[float | None], dtype: torch.dtype = torch.float64
) -> tuple[float, list[float | None]]:
    """The total of losses of these values, and its derivative by each; None is a task without labels."""
    losses = [None if v is None else torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]
    total = method.total(losses)
    total.backward()
    return total.item(), [None if loss is None else loss.grad.item() for loss in losses]
