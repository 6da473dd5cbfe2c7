"""Trimmed mean of the task gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["TrimmedMean"]

# Up to this trim, passes over the rows are many times faster than torch.sort over the first axis.
_PASSES = 4


@register_method("trimmed_mean")
class TrimmedMean(GradientAggregator):
    r"""In every coordinate, drop the largest and the smallest task gradients and take the mean.

    .. math:: \frac{1}{K - 2b} \sum_{k = b + 1}^{K - b} G_{(k)}

    where :math:`G_{(1)} \le \dots \le G_{(K)}` are one coordinate's values in order. A coordinate is
    that of one sample's feature.

    Needs: features; whole gradients, as no weight per task gives it.

    Differences: the paper trims gradients of workers, of which some are adversarial; TorchJD, and
    mtlkit, trim those of tasks. With too few tasks for the ``trim`` (in a batch without the labels of
    some, say) as many are trimmed as leave one or two: the median.

    Args:
        trim: b, how many values are dropped at each end.
    """

    paper = (
        "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018"
    )
    year = 2018

    def __init__(self, tasks: Tasks, *, trim: int = 1, **common: Any) -> None:
        super().__init__(tasks, **common)
        if trim < 0:
            raise SpecError(f"trim of trimmed_mean must be 0 or more, not {trim}")
        self.trim = trim

    def merge(self, grads: Tensor) -> Tensor:
        """The mean of the (P, N) gradients, without the extremes of each coordinate."""
        count = len(grads)
        trim = min(self.trim, (count - 1) // 2)
        if trim == 0:
            return grads.mean(dim=0)
        if trim > _PASSES:
            return torch.sort(grads, dim=0).values[trim : count - trim].mean(dim=0)
        ordered = _sort(list(grads[: 2 * trim]))
        low, high = ordered[:trim], ordered[trim:]
        kept = torch.zeros_like(grads[0])
        for row in grads[2 * trim :]:
            # the extremes change places with what comes to exceed them; the rest is in the middle
            for index in range(trim):
                high[index], row = torch.maximum(high[index], row), torch.minimum(high[index], row)
            for index in range(trim):
                low[index], row = torch.minimum(low[index], row), torch.maximum(low[index], row)
            kept = kept + row
        return kept / (count - 2 * trim)


def _sort(rows: list[Tensor]) -> list[Tensor]:
    """Rows in ascending order, coordinate by coordinate."""
    for end in range(len(rows) - 1, 0, -1):
        for index in range(end):
            one, two = rows[index], rows[index + 1]
            rows[index], rows[index + 1] = torch.minimum(one, two), torch.maximum(one, two)
    return rows
