"""A class per pixel."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import NO_LABEL, ClassLoss, Loss, class_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names


@register_task("segmentation")
class Segmentation(Task):
    """Cross-entropy; prediction (B, C, H, W), target (B, H, W), negative where unlabeled.

    Args:
        name: of the task.
        classes: their number, or their names.
        loss: instead of the cross-entropy; it leaves out unlabeled pixels itself, which are
            :data:`~mtlkit.tasks.NO_LABEL`, torch's own ``ignore_index``.
    """

    size_option = "classes"
    missing = NO_LABEL
    dense = True

    def __init__(self, name: str, *, classes: Classes, loss: Loss | None = None) -> None:
        number, names = class_names(name, "classes", classes)
        metrics = {"miou": True, "pixel_accuracy": True}
        super().__init__(
            name,
            cross_entropy if loss is None else ClassLoss(name, loss, class_known),
            {"confusion": partial(_confusion, number)},
            metrics,
            outputs=number,
            labels=class_known,
            kind="segmentation",
            classes=names,
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """A map of class numbers."""
        return {self.name: prediction.argmax(dim=1).to(torch.int16).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """A color per class."""
        shown = torch.where(target >= 0, target.double(), torch.nan)
        last = max((self.outputs or 2) - 1, 1)
        axis.imshow(shown.numpy(), cmap="tab20", vmin=0, vmax=last, interpolation="nearest")


def cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the pixels whose class is known."""
    target = torch.where(target < 0, NO_LABEL, target).long()
    return functional.cross_entropy(prediction, target, ignore_index=NO_LABEL)


def _confusion(classes: int) -> Any:
    from mtlkit.tasks.metrics import SegmentationScores

    return SegmentationScores(classes)
