"""The kind ``regression``: one or more numbers per sample."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from mtlkit.tasks.labels import KnownSamples, Loss, Masked, number_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task


@register_task("regression")
class Regression(Task):
    """Mean squared error; (B, D), or (B,) for one number; single numbers are NaN where unknown.

    The metrics ``mse`` and ``mae`` are those of the targets as the network sees them, ``rmse`` is in the
    unit of the data, also if the data set standardizes its targets, and ``r2`` has no unit.

    Args:
        name: name of the task.
        outputs: how many numbers a sample has.
        loss: replaces the squared error; it is given the samples whose numbers are all known.

    >>> import torch
    >>> from mtlkit.tasks import Regression
    >>> task = Regression("price")
    >>> task.means, task.deviations = [300.0], [100.0]  # of the targets, in euros
    >>> metrics = task.make_metrics()
    >>> task.update(metrics, torch.tensor([[0.5], [-1.0]]), torch.tensor([[1.0], [-1.0]]))
    >>> {name: round(value, 3) for name, value in task.compute(metrics).items()}
    {'mse': 0.125, 'mae': 0.25, 'rmse': 35.355, 'r2': 0.875}
    """

    size_option = "outputs"

    def __init__(self, name: str, *, outputs: int = 1, loss: Loss | None = None) -> None:
        super().__init__(
            name,
            Masked(name, functional.mse_loss, number_known)
            if loss is None
            else KnownSamples(name, loss, number_known),
            {"errors": self._errors},
            {"mse": False, "mae": False, "rmse": False, "r2": True},
            outputs=outputs,
            labels=number_known,
            kind="regression",
        )

    def _errors(self) -> Any:
        from mtlkit.tasks.metrics import RegressionErrors

        return RegressionErrors(self.outputs or 1, self.deviations)
