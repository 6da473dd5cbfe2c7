"""Numbers."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from mtlkit.tasks.labels import KnownSamples, Loss, Masked, number_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task


@register_task("regression")
class Regression(Task):
    """Mean squared error; (B, D), or (B,) for one number; single numbers NaN where unknown.

    Args:
        name: of the task.
        outputs: how many numbers a sample has.
        loss: instead of the squared error; it is given the samples whose numbers are all known.
    """

    size_option = "outputs"

    def __init__(self, name: str, *, outputs: int = 1, loss: Loss | None = None) -> None:
        super().__init__(
            name,
            Masked(name, functional.mse_loss, number_known)
            if loss is None
            else KnownSamples(name, loss, number_known),
            {"errors": make_errors},
            {"mse": False, "mae": False},
            outputs=outputs,
            labels=number_known,
            kind="regression",
        )


def make_errors() -> Any:
    """Make the metrics, mean squared and absolute error."""
    from mtlkit.tasks.metrics import RegressionErrors

    return RegressionErrors()
