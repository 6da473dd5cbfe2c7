"""Quantities that methods compute from the values of the losses."""

import torch
from torch import Tensor

from mtlkit.engine.gram import safe_divide


def log_losses(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Return logarithms in float64, zero where a loss is zero, and a mask of the losses that are not.

    A negative loss gives NaN, and so a total that is not finite.
    """
    active = losses != 0
    return torch.log(torch.where(active, losses.double(), 1.0)), active


def inverse_losses(losses: Tensor) -> Tensor:
    """Return 1/L in float64: zero where a loss is zero, and NaN where it is negative."""
    exact = torch.where(losses < 0, torch.nan, losses.double())
    return safe_divide(torch.ones_like(exact), exact)


def relative_losses(losses: Tensor, references: Tensor) -> Tensor:
    """Return the ratios of losses to their references; 1 where a reference is zero."""
    return torch.where(references == 0, 1.0, safe_divide(losses, references))


def softmax_weights(signals: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the softmax of the signals times their number: weights whose mean is one."""
    return len(signals) * (signals / temperature).softmax(dim=0)
