"""The kind ``normals``: surface normal per pixel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import KnownPixels, Loss
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task


@register_task("normals")
class Normals(Task):
    """One minus the cosine; (B, 3, H, W), NaN or the zero vector where unknown.

    Args:
        name: name of the task.
        loss: replaces the cosine; it is given the pixels that are known, (P, 3).

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
        metrics = {
            "mean_angle": False,
            "median_angle": False,
            "within_11.25": True,
            "within_22.5": True,
            "within_30": True,
        }
        super().__init__(
            name,
            cosine_distance if loss is None else KnownPixels(name, loss, _has_direction),
            {"angles": _angles},
            metrics,
            outputs=3,
            labels=_has_direction,
            kind="normals",
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (3, H, W) of unit vectors per sample."""
        return {self.name: functional.normalize(prediction, dim=1).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw the three components as red, green and blue."""
        axis.imshow(((target.permute(1, 2, 0).numpy() + 1) / 2).clip(0, 1))


def _has_direction(target: Tensor) -> Tensor:
    return torch.nan_to_num(target).abs().amax(dim=1) > 0


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return one minus the mean cosine over the pixels whose normal is known."""
    mask = _has_direction(target)
    target = functional.normalize(torch.nan_to_num(target), dim=1)
    cosines = (functional.normalize(prediction, dim=1) * target).sum(dim=1)
    return 1 - torch.where(mask, cosines, 0.0).sum() / mask.sum()


def _angles() -> Any:
    from mtlkit.tasks.metrics import NormalAngles

    return NormalAngles()
