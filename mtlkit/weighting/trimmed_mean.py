"""Trimmed mean of the task gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["TrimmedMean"]


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
        if trim == 1:  # many times faster than sorting along the first axis
            extremes = grads.amax(dim=0) + grads.amin(dim=0)
            return (grads.sum(dim=0) - extremes) / (count - 2)
        return grads.sort(dim=0).values[trim : count - trim].mean(dim=0)
