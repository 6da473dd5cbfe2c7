"""The kind ``dense_regression``: numbers per pixel, such as edges or heat maps."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import KnownPixels, Loss, Masked, number_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task

_LOSSES = {"l1": functional.l1_loss, "mse": functional.mse_loss}


@register_task("dense_regression")
class DenseRegression(Task):
    """Absolute or squared error per pixel; (B, D, H, W), NaN where a pixel is unknown.

    Unlike ``depth``, all numbers are valid: 0 is a value.

    Args:
        name: name of the task.
        outputs: how many numbers a pixel has.
        error: ``l1`` for the absolute error, ``mse`` for the squared error; it is the loss, and decides
            the main metric.
        loss: replaces that loss; it is given the pixels that are known, (P,).

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
        metrics = {"mae": False, "mse": False, "rmse": False, "r2": True}
        super().__init__(
            name,
            Masked(name, _LOSSES[error], number_known)
            if loss is None
            else KnownPixels(name, loss, number_known),
            {"errors": self._errors},
            metrics,
            outputs=outputs,
            labels=number_known,
            kind="dense_regression",
        )
        if error == "mse":
            self.prefer("mse")

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return a map (H, W) per sample, or (D, H, W) for several numbers per pixel."""
        return {self.name: (prediction[:, 0] if self.outputs == 1 else prediction).numpy()}

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw the mean over the channels in shades of gray."""
        axis.imshow(torch.nanmean(target, dim=0).numpy(), cmap="gray")

    def _errors(self) -> Any:
        from mtlkit.tasks.metrics import RegressionErrors

        return RegressionErrors(self.outputs or 1, self.deviations)
