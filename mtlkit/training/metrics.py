"""Metrics that torchmetrics lacks in masked form: those of NYUv2, and errors with unknown entries.

All states are sums, so that they add up exactly over processes and memory does not grow with the data.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric

__all__ = ["DepthErrors", "NormalAngles", "RegressionErrors", "SegmentationScores"]

ANGLES = (11.25, 22.5, 30.0)
_BINS_PER_DEGREE = 100


def _add_sums(metric: Metric, *names: str, size: tuple[int, ...] = ()) -> None:
    for name in names:
        metric.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")


class RegressionErrors(Metric):
    """``mse`` and ``mae`` over the targets that are not NaN."""

    full_state_update = False
    squares: Tensor
    absolutes: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        _add_sums(self, "squares", "absolutes", "count")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch."""
        errors = prediction.double() - target.reshape(prediction.shape).double()
        errors = errors[~torch.isnan(target.reshape(prediction.shape))]
        self.squares += errors.square().sum()
        self.absolutes += errors.abs().sum()
        self.count += errors.numel()

    def compute(self) -> dict[str, Tensor]:
        """Means over all labels."""
        return {"mse": self.squares / self.count, "mae": self.absolutes / self.count}


class SegmentationScores(Metric):
    """``miou`` over the classes that occur, and ``pixel_accuracy``; negative targets do not count."""

    full_state_update = False
    confusion: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        _add_sums(self, "confusion", size=(classes, classes))

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: logits (B, C, H, W) and classes (B, H, W)."""
        chosen = prediction.argmax(dim=1)
        known = target >= 0
        pairs = target[known].long() * self.classes + chosen[known]
        counts = torch.bincount(pairs, minlength=self.classes**2)
        self.confusion += counts.reshape(self.classes, self.classes)

    def compute(self) -> dict[str, Tensor]:
        """From the confusion matrix of all pixels; a class in neither map is left out of the mean."""
        hits = self.confusion.diagonal()
        union = self.confusion.sum(0) + self.confusion.sum(1) - hits
        present = union > 0
        return {
            "miou": (hits[present] / union[present]).mean(),
            "pixel_accuracy": hits.sum() / self.confusion.sum(),
        }


class DepthErrors(Metric):
    """``abs_error`` and ``rel_error`` (absolute error over true depth) where the depth is known."""

    full_state_update = False
    absolutes: Tensor
    relatives: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        _add_sums(self, "absolutes", "relatives", "count")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch."""
        target = target.reshape(prediction.shape)
        known = target > 0
        truth = target[known].double()
        errors = (prediction[known].double() - truth).abs()
        self.absolutes += errors.sum()
        self.relatives += (errors / truth).sum()
        self.count += truth.numel()

    def compute(self) -> dict[str, Tensor]:
        """Means over all known pixels."""
        return {"abs_error": self.absolutes / self.count, "rel_error": self.relatives / self.count}


class NormalAngles(Metric):
    """Angles to the true normals: mean and median in degrees, and shares within 11.25, 22.5 and 30.

    The median is read off a histogram with bins of 0.01 degrees, interpolated within the bin.
    """

    full_state_update = False
    total: Tensor
    count: Tensor
    within: Tensor
    histogram: Tensor

    def __init__(self) -> None:
        super().__init__()
        _add_sums(self, "total", "count")
        _add_sums(self, "within", size=(len(ANGLES),))
        _add_sums(self, "histogram", size=(180 * _BINS_PER_DEGREE,))

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch of (B, 3, H, W) maps."""
        truth = torch.nan_to_num(target.double())
        known = truth.abs().amax(dim=1) > 0
        cosines = (
            functional.normalize(prediction.double(), dim=1) * functional.normalize(truth, dim=1)
        ).sum(dim=1)
        degrees = torch.rad2deg(torch.acos(cosines[known].clamp(-1, 1)))
        self.total += degrees.sum()
        self.count += degrees.numel()
        for index, limit in enumerate(ANGLES):
            self.within[index] += (degrees < limit).sum()
        bins = (degrees * _BINS_PER_DEGREE).long().clamp(max=len(self.histogram) - 1)
        self.histogram += torch.bincount(bins, minlength=len(self.histogram))

    def compute(self) -> dict[str, Tensor]:
        """Figures over all known pixels."""
        values = {"mean_angle": self.total / self.count, "median_angle": self._median()}
        shares = self.within / self.count
        return values | {f"within_{limit:g}": shares[i] for i, limit in enumerate(ANGLES)}

    def _median(self) -> Tensor:
        if self.count == 0:
            return torch.full_like(self.total, torch.nan)
        below = self.histogram.cumsum(0)
        half = self.count / 2
        index = int(torch.searchsorted(below, half))
        inside = (half - (below[index] - self.histogram[index])) / self.histogram[index]
        return (index + inside) / _BINS_PER_DEGREE
