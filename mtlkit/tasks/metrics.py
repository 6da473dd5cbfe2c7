"""Metrics that torchmetrics lacks: those of NYUv2, and errors with missing labels.

States are sums, so that they add up exactly over processes and memory does not grow with the data; only
:class:`RankingScore` keeps every score. Import this module only where a metric is made, because
importing torchmetrics is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric, classification
from torchmetrics.classification import MulticlassAccuracy as MulticlassAccuracy
from torchmetrics.classification import MulticlassConfusionMatrix
from torchmetrics.utilities import dim_zero_cat

from mtlkit.tasks.labels import NO_LABEL, number_known

ANGLES = (11.25, 22.5, 30.0)
_BINS_PER_DEGREE = 100


def _add_sums(metric: Metric, *names: str, size: tuple[int, ...] = ()) -> None:
    for name in names:
        metric.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")


class AnswerScore:
    """A metric of torchmetrics for answers 0 and 1 that ignores NaN and negative answers.

    Args:
        name: class of :mod:`torchmetrics.classification`.
        options: positional arguments of that class.
        link: turns logits into probabilities, because torchmetrics would not change logits in [0, 1].
    """

    def __init__(self, name: str, *options: Any, link: Callable[[Tensor], Tensor] | None = None) -> None:
        self.metric = getattr(classification, name)(*options, ignore_index=NO_LABEL)
        self.link = link

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch."""
        if self.link is not None:
            prediction = self.link(prediction)
        target = torch.where(target >= 0, target, NO_LABEL).long()
        self.metric.update(prediction.reshape(target.shape), target)

    def compute(self) -> Any:
        """Return the metric's value."""
        return self.metric.compute()

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()

    def to(self, device: Any) -> AnswerScore:
        """Move to a device."""
        self.metric.to(device)
        return self


class RankingScore(Metric):
    """``auc``: how often a positive sample is ranked above a negative one, ties counting half.

    That is the area under the ROC curve; NaN if one of the two classes does not occur. Unknown answers
    are ignored.
    """

    full_state_update = False
    pairs: list[Tensor]
    """Scores and answers (B, 2) of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("pairs", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        # never empty, so that a process without labels takes part in the gathering
        self.pairs.append(torch.zeros(0, 2, device=self.device))

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch."""
        prediction, target = prediction.reshape(-1), target.reshape(-1)
        known = target >= 0
        self.pairs.append(torch.stack([prediction[known].float(), target[known].float()], dim=1))

    def compute(self) -> Tensor:
        """Compute the area from the mean rank of the positive samples (Mann and Whitney)."""
        scores, answers = dim_zero_cat(self.pairs).unbind(dim=1)
        yes = answers > 0.5
        positive = yes.sum().double()
        negative = len(yes) - positive
        _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
        ranks = counts.cumsum(0).double() - (counts - 1) / 2  # equal scores share their mean rank
        above = ranks[place][yes].sum() - positive * (positive + 1) / 2
        score: Tensor = above / (positive * negative)
        return score


class RegressionErrors(Metric):
    """``mse``, ``mae``, ``rmse`` and ``r2`` over the targets that are not NaN.

    ``r2`` is one minus squared error over variance, averaged over the outputs that vary.

    Args:
        outputs: number of outputs per sample or pixel.
        deviations: standard deviations of standardized targets, for ``rmse`` in their unit; empty for 1.
    """

    full_state_update = False
    squares: Tensor
    absolutes: Tensor
    count: Tensor
    targets: Tensor
    squared_targets: Tensor

    def __init__(self, outputs: int = 1, deviations: Sequence[float] = ()) -> None:
        super().__init__()
        self.outputs = outputs
        self.deviations = tuple(deviations) or (1.0,) * outputs
        names = ("squares", "absolutes", "count", "targets", "squared_targets")
        _add_sums(self, *names, size=(outputs,))

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: (B,), (B, D), or (B, D, ...) with D outputs."""
        shape = (len(prediction), self.outputs, -1)
        target = target.reshape(shape)
        known = number_known(target)
        wanted = torch.where(known, target.double(), 0.0)  # (B, D, pixels)
        errors = torch.where(known, prediction.double().reshape(shape) - wanted, 0.0)
        self.squares += errors.square().sum(dim=(0, 2))
        self.absolutes += errors.abs().sum(dim=(0, 2))
        self.count += known.sum(dim=(0, 2))
        self.targets += wanted.sum(dim=(0, 2))
        self.squared_targets += wanted.square().sum(dim=(0, 2))

    def compute(self) -> dict[str, Tensor]:
        """Return means over all labels."""
        number = self.count.sum()
        variances = self.squared_targets - self.targets.square() / self.count
        varies = variances > 1e-12 * self.squared_targets  # else it is rounding
        unit = self.squares.new_tensor(self.deviations)
        return {
            "mse": self.squares.sum() / number,
            "mae": self.absolutes.sum() / number,
            "rmse": ((self.squares * unit.square()).sum() / number).sqrt(),
            "r2": (1 - self.squares[varies] / variances[varies]).mean(),
        }


class SegmentationScores(MulticlassConfusionMatrix):
    """``miou`` over the classes that occur, and ``pixel_accuracy``; negative targets are ignored."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes, ignore_index=NO_LABEL, validate_args=False)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: logits (B, C, H, W) and classes (B, H, W)."""
        super().update(prediction.argmax(dim=1), torch.where(target >= 0, target, NO_LABEL).long())

    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the scores of all pixels; classes in neither map are not in the mean."""
        confusion = self.confmat.double()
        hits = confusion.diagonal()
        union = confusion.sum(0) + confusion.sum(1) - hits
        present = union > 0
        return {
            "miou": (hits[present] / union[present]).mean(),
            "pixel_accuracy": hits.sum() / confusion.sum(),
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
        depth = target[known].double()
        errors = (prediction[known].double() - depth).abs()
        self.absolutes += errors.sum()
        self.relatives += (errors / depth).sum()
        self.count += depth.numel()

    def compute(self) -> dict[str, Tensor]:
        """Return means over all known pixels."""
        return {"abs_error": self.absolutes / self.count, "rel_error": self.relatives / self.count}


class NormalAngles(Metric):
    """Angles to the true normals: mean and median in degrees, and fractions within 11.25, 22.5, 30.

    The median is interpolated in a histogram with bins of 0.01 degrees.
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
        normals = torch.nan_to_num(target.double())
        known = normals.abs().amax(dim=1) > 0
        cosines = (
            functional.normalize(prediction.double(), dim=1) * functional.normalize(normals, dim=1)
        ).sum(dim=1)
        degrees = torch.rad2deg(torch.acos(cosines[known].clamp(-1, 1)))
        self.total += degrees.sum()
        self.count += degrees.numel()
        for index, limit in enumerate(ANGLES):
            self.within[index] += (degrees < limit).sum()
        worst = len(self.histogram) - 1  # also the bin of predictions that are not finite
        bins = torch.nan_to_num(degrees * _BINS_PER_DEGREE, nan=worst).long().clamp(max=worst)
        self.histogram += torch.bincount(bins, minlength=len(self.histogram))

    def compute(self) -> dict[str, Tensor]:
        """Return the statistics over all known pixels."""
        values = {"mean_angle": self.total / self.count, "median_angle": self._median()}
        fractions = self.within / self.count
        return values | {f"within_{limit:g}": fractions[i] for i, limit in enumerate(ANGLES)}

    def _median(self) -> Tensor:
        if self.count == 0:
            return torch.full_like(self.total, torch.nan)
        below = self.histogram.cumsum(0)
        half = self.count / 2
        index = int(torch.searchsorted(below, half))
        inside = (half - (below[index] - self.histogram[index])) / self.histogram[index]
        return (index + inside) / _BINS_PER_DEGREE
