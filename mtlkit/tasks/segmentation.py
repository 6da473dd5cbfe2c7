"""The kind ``segmentation``: a class per pixel."""

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
        name: name of the task.
        classes: number of classes, or their names.
        loss: replaces the cross-entropy; it must leave out unlabeled pixels, which are
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
        """Return a map of class numbers per sample."""
        return {self.name: prediction.argmax(dim=1).to(torch.int16).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw each class in a color."""
        shown = torch.where(target >= 0, target.double(), torch.nan)
        last = max((self.outputs or 2) - 1, 1)
        axis.imshow(shown.numpy(), cmap="tab20", vmin=0, vmax=last, interpolation="nearest")


def cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the pixels whose class is known."""
    target = torch.where(target < 0, NO_LABEL, target).long()
    return functional.cross_entropy(prediction, target, ignore_index=NO_LABEL)


def _confusion(classes: int) -> Any:
    from mtlkit.tasks.metrics import SegmentationScores

    return SegmentationScores(classes)
