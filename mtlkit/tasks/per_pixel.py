"""Kinds of tasks with a target per pixel: classes, depth, surface normals, numbers."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import (
    NO_LABEL,
    ClassLoss,
    KnownPixels,
    Loss,
    class_known,
    masked_loss,
    number_known,
)
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names, make_metric

_LOSSES = {"l1": functional.l1_loss, "mse": functional.mse_loss}


@register_task("segmentation")
class Segmentation(Task):
    """A class per pixel: cross-entropy; prediction (B, C, H, W), target (B, H, W), negative if unknown.

    Args:
        classes: number of classes, or their names.
        loss: replaces the cross-entropy; it must ignore unknown pixels, which are
            :data:`~mtlkit.tasks.NO_LABEL`, the default ``ignore_index`` of torch's losses.

    >>> import torch
    >>> from mtlkit.tasks import Segmentation
    >>> task = Segmentation("parts", classes=["road", "sky"])
    >>> loss, pixels = task.measure(torch.zeros(1, 2, 1, 2), torch.tensor([[[0, -1]]]))
    >>> round(float(loss), 3), pixels
    (0.693, 1)
    """

    size_option = "classes"
    missing = NO_LABEL
    dense = True

    def __init__(self, name: str, *, classes: Classes, loss: Loss | None = None) -> None:
        number, names = class_names(name, "classes", classes)
        metrics = {"miou": True, "pixel_accuracy": True}
        super().__init__(
            name,
            ClassLoss(name, functional.cross_entropy if loss is None else loss, class_known),
            {"confusion": partial(make_metric, "SegmentationScores", number)},
            metrics,
            outputs=number,
            labels=class_known,
            classes=names,
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map of class numbers per sample."""
        return {self.name: prediction.argmax(dim=1).to(torch.int16).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw each class in its own color."""
        shown = torch.where(target >= 0, target.double(), torch.nan)
        last = max((self.outputs or 2) - 1, 1)
        axis.imshow(shown.numpy(), cmap="tab20", vmin=0, vmax=last, interpolation="nearest")


@register_task("depth")
class Depth(Task):
    """Distance per pixel: absolute error; (B, 1, H, W), NaN or not above zero if unknown.

    Args:
        loss: replaces the absolute error; it receives the known pixels, (P,).

    >>> import torch
    >>> from mtlkit.tasks import Depth
    >>> target = torch.tensor([[[[2.0, 0.0]]]])  # the second pixel is unknown
    >>> loss, pixels = Depth("distance").measure(torch.ones(1, 1, 1, 2), target)
    >>> float(loss), pixels
    (1.0, 1)
    """

    missing = 0.0
    dense = True

    def __init__(self, name: str, *, loss: Loss | None = None) -> None:
        metrics = {"abs_error": False, "rel_error": False}
        super().__init__(
            name,
            masked_loss(name, functional.l1_loss, loss, KnownPixels, _positive),
            {"errors": partial(make_metric, "DepthErrors")},
            metrics,
            outputs=1,
            labels=_positive,
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (H, W) of distances per sample."""
        return {self.name: prediction[:, 0].numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw near pixels dark."""
        axis.imshow(torch.where(target > 0, target, torch.nan)[0].numpy(), cmap="viridis")


@register_task("normals")
class Normals(Task):
    """Surface normal per pixel: one minus the cosine; (B, 3, H, W), NaN or zero if unknown.

    Args:
        loss: replaces the cosine distance; it receives the known pixels, (P, 3).

    >>> import torch
    >>> from mtlkit.tasks import Normals
    >>> up = torch.tensor([0.0, 0.0, 1.0]).reshape(1, 3, 1, 1)
    >>> loss, pixels = Normals("surface").measure(5 * up, up)
    >>> float(loss), pixels
    (0.0, 1)
    """

    missing = 0.0
    dense = True

    def __init__(self, name: str, *, loss: Loss | None = None) -> None:
        metrics = {"mean_angle": False, "median_angle": False}
        metrics |= dict.fromkeys(("within_11.25", "within_22.5", "within_30"), True)
        super().__init__(
            name,
            cosine_distance if loss is None else KnownPixels(name, loss, _has_direction),
            {"angles": partial(make_metric, "NormalAngles")},
            metrics,
            outputs=3,
            labels=_has_direction,
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (3, H, W) of unit vectors per sample."""
        return {self.name: functional.normalize(prediction, dim=1).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw the three components as red, green and blue."""
        axis.imshow(((target.permute(1, 2, 0).numpy() + 1) / 2).clip(0, 1))


@register_task("dense_regression")
class DenseRegression(Task):
    """Numbers per pixel: absolute or squared error; (B, D, H, W), NaN if unknown.

    Unlike for ``depth``, all numbers are valid, also 0.

    Args:
        outputs: numbers per pixel.
        error: ``l1`` for the absolute error, ``mse`` for the squared error, as loss and main metric.
        loss: replaces that loss; it receives the known pixels, (P,).

    >>> import torch
    >>> from mtlkit.tasks import DenseRegression
    >>> task = DenseRegression("edges")
    >>> target = torch.tensor([[[[0.0, 1.0], [float("nan"), 0.0]]]])
    >>> loss, pixels = task.measure(torch.full((1, 1, 2, 2), 0.5), target)
    >>> float(loss), pixels
    (0.5, 3)
    """

    size_option = "outputs"
    dense = True

    def __init__(
        self,
        name: str,
        *,
        outputs: int = 1,
        error: Literal["l1", "mse"] = "l1",
        loss: Loss | None = None,
    ) -> None:
        super().__init__(
            name,
            masked_loss(name, _LOSSES[error], loss, KnownPixels, number_known),
            {"errors": self.make_errors},
            {"mae": False, "mse": False, "rmse": False, "r2": True},
            outputs=outputs,
            labels=number_known,
        )
        if error == "mse":
            self.prefer("mse")

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (H, W) per sample, or (D, H, W) for several numbers per pixel."""
        return {self.name: (prediction[:, 0] if self.outputs == 1 else prediction).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw the mean over the channels in shades of gray."""
        axis.imshow(torch.nanmean(target, dim=0).numpy(), cmap="gray")


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return one minus the mean cosine over the pixels whose normal is known."""
    mask = _has_direction(target)
    target = functional.normalize(torch.nan_to_num(target), dim=1)
    cosines = (functional.normalize(prediction, dim=1) * target).sum(dim=1)
    return 1 - torch.where(mask, cosines, 0.0).sum() / mask.sum()


def _positive(target: Tensor) -> Tensor:
    return target > 0  # false for NaN


def _has_direction(target: Tensor) -> Tensor:
    return torch.nan_to_num(target).abs().amax(dim=1) > 0
