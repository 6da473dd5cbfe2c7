"""The kind ``depth``: distance per pixel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import KnownPixels, Loss, Masked
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task


@register_task("depth")
class Depth(Task):
    """Absolute error; (B, 1, H, W), NaN or not above zero where unknown.

    Args:
        name: name of the task.
        loss: replaces the absolute error; it is given the pixels that are known, (P,).

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
            Masked(name, functional.l1_loss, _positive)
            if loss is None
            else KnownPixels(name, loss, _positive),
            {"errors": _errors},
            metrics,
            outputs=1,
            labels=_positive,
            kind="depth",
            compared=tuple(metrics),
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (H, W) of distances per sample."""
        return {self.name: prediction[:, 0].numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw near pixels dark."""
        axis.imshow(torch.where(target > 0, target, torch.nan)[0].numpy(), cmap="viridis")


def _positive(target: Tensor) -> Tensor:
    return target > 0  # false for NaN


def _errors() -> Any:
    from mtlkit.tasks.metrics import DepthErrors

    return DepthErrors()
