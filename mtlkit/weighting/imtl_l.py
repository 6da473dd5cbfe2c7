"""IMTL-L: learnt scales that bring all losses to one size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["IMTLL"]


@register_method("imtl_l")
class IMTLL(GradientAggregator):
    r"""Learn a scale per task that brings all losses to the same size.

    .. math:: \sum_k \big( e^{s_k} L_k - s_k \big)

    The :math:`s_k` are parameters of the method, zero at first and trained by the user's optimizer.
    At rest :math:`e^{s_k} L_k = 1` for every task, whatever the units of the losses.

    Needs: owned parameters (add ``method.parameters()`` to the optimizer). It is the loss part of
    IMTL; the gradient part is ``imtl_g``.

    Differences: none from the paper with its base a = e. Twice ``uw`` with :math:`s_k` negated, so
    the two share their optima, not their path.
    """

    paper = "Liu et al., Towards Impartial Multi-task Learning, ICLR 2021"
    year = 2021
    # no value of a loss enters, but which tasks have labels on some process does
    uses_losses = True

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.log_scales = nn.Parameter(torch.zeros(len(self.tasks)))

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """The learnt scales."""
        return torch.exp(self._present(step)).to(losses.dtype)

    def loss_penalty(self, losses: Tensor, step: Any = None) -> Tensor:
        """Minus the sum of the logarithms of the scales."""
        return -self._present(step).sum().to(losses.dtype)

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """Own parameters, so that DDP finds them in use at the end of the forward pass."""
        return (self.log_scales,)

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """None: their gradient comes from the total."""
        return (None,)

    def _present(self, step: Any) -> Tensor:
        return self.log_scales if step is None else step.pick(self.log_scales)
