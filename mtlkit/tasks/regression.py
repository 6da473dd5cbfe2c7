"""Numbers."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from mtlkit.tasks.labels import Masked, number_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task

__all__ = ["Regression"]


@register_task("regression")
class Regression(Task):
    """Mean squared error; (B, D), or (B,) for one number; single numbers NaN where unknown.

    Args:
        name: of the task.
        outputs: how many numbers a sample has.
    """

    size_option = "outputs"

    def __init__(self, name: str, *, outputs: int = 1) -> None:
        super().__init__(
            name,
            Masked(name, functional.mse_loss, number_known),
            {"errors": _errors},
            {"mse": False, "mae": False},
            outputs=outputs,
            labels=number_known,
            kind="regression",
        )


def _errors() -> Any:
    from mtlkit.tasks.metrics import RegressionErrors

    return RegressionErrors()
