"""Numbers per pixel: edges, heat maps, saliency, disparity."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import KnownPixels, Loss, Masked, number_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.regression import make_errors
from mtlkit.tasks.task import Task


@register_task("dense_regression")
class DenseRegression(Task):
    """Mean squared error over pixels; (B, D, H, W), single numbers NaN where unknown.

    Args:
        name: of the task.
        outputs: how many numbers a pixel has.
        loss: instead of the squared error; it is given the numbers that are known, (P,).

    Example:
        >>> import torch
        >>> edges = DenseRegression("edges")
        >>> target = torch.zeros(2, 1, 4, 4)
        >>> target[:, :, 0] = float("nan")  # the first row of pixels is not known
        >>> loss, labels = edges.measure(torch.ones(2, 1, 4, 4), target)
        >>> float(loss), labels
        (1.0, 24)
    """

    size_option = "outputs"
    dense = True

    def __init__(self, name: str, *, outputs: int = 1, loss: Loss | None = None) -> None:
        super().__init__(
            name,
            Masked(name, functional.mse_loss, number_known)
            if loss is None
            else KnownPixels(name, loss, number_known),
            {"errors": make_errors},
            {"mse": False, "mae": False},
            outputs=outputs,
            labels=number_known,
            kind="dense_regression",
        )

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (H, W) of numbers for every output."""
        if self.outputs == 1:
            return {self.name: prediction[:, 0].numpy()}
        return {f"{self.name}_{i}": prediction[:, i].numpy() for i in range(prediction.shape[1])}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Show the first of the numbers; unknown pixels stay white."""
        axis.imshow(target[0].numpy(), cmap="magma")
