"""DWA: dynamic weight average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import safe_divide

__all__ = ["DWA"]


@register_method("dwa")
class DWA(GradientAggregator):
    r"""Give more weight to the tasks whose losses fall more slowly.

    .. math:: w_k(t) = K \frac{\exp(r_k(t-1) / T)}{\sum_i \exp(r_i(t-1) / T)}, \qquad
        r_k(t-1) = \frac{L_k(t-1)}{L_k(t-2)}

    where t counts windows of ``window`` steps and :math:`L_k(t)` is the task's mean loss in window t.
    A task that has not yet seen two full windows has the rate 1, as in the paper.

    Needs: the values of the losses, which should keep their sign. A previous loss of zero gives the
    rate 1.

    Differences: the paper's experiments average over an epoch; set ``window`` to the batches of an
    epoch for that. The default applies the equation step by step, which follows the noise of the
    batches. Steps without a task's labels do not count in its window.

    Args:
        temperature: T; larger values make the weights more equal.
        window: steps over which a loss is averaged.
    """

    paper = "Liu et al., End-to-End Multi-Task Learning with Attention, CVPR 2019"
    year = 2019
    uses_losses = True

    sums: Tensor
    counts: Tensor
    newer: Tensor
    older: Tensor
    windows: Tensor

    def __init__(
        self, tasks: Tasks, *, temperature: float = 2.0, window: int = 1, **common: Any
    ) -> None:
        super().__init__(tasks, **common)
        if not 0 < temperature < torch.inf:
            raise SpecError(f"temperature of dwa must be positive, not {temperature}")
        if window < 1:
            raise SpecError(f"window of dwa must be 1 step or more, not {window}")
        self.temperature = temperature
        self.window = window
        for name in ("sums", "newer", "older"):
            self.register_buffer(name, torch.zeros(len(self.tasks), dtype=torch.float64))
        for name in ("counts", "windows"):
            self.register_buffer(name, torch.zeros(len(self.tasks), dtype=torch.long))

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """Softmax of the rates, times the number of tasks present."""
        newer, older, windows = (
            buffer if step is None else step.pick(buffer)
            for buffer in (self.newer, self.older, self.windows)
        )
        known = (windows >= 2) & (older != 0)
        rates = torch.where(known, safe_divide(newer, older), 1.0)
        return (len(losses) * (rates / self.temperature).softmax(dim=0)).to(losses.dtype)

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Add to the window's sums; at its end, move on to the next window."""
        sums = step.pick(self.sums) + losses.double()
        counts = step.pick(self.counts) + 1
        newer, older = step.pick(self.newer), step.pick(self.older)
        full = counts == self.window
        self.remember("windows", step.pick(self.windows) + full, step)
        self.remember("older", torch.where(full, newer, older), step)
        self.remember("newer", torch.where(full, sums / counts, newer), step)
        self.remember("sums", torch.where(full, 0.0, sums), step)
        self.remember("counts", torch.where(full, 0, counts), step)
