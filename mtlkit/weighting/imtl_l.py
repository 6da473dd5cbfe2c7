"""IMTL-L: learned scales that bring all losses to one size."""

from typing import Any

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("imtl_l")
class IMTLL(GradientAggregator):
    r"""Learn a scale per task that brings all losses to the same size.

    .. math:: \sum_k \big( e^{s_k} L_k - s_k \big)

    The :math:`s_k` are parameters of the method: add ``method.parameters()`` to the optimizer. They are
    zero at first. At the optimum :math:`e^{s_k} L_k = 1` for every task, whatever the units of the
    losses.

    This is the loss part of IMTL, the gradient part is ``imtl_g``; ``imtl`` stands for both.

    Update scale: every loss has the factor 1 at first.

    Differences: none from the paper with its base a = e. LibMTL's IMTL is this pair; it and TorchJD,
    which has the halves apart, start at zero too. It is twice ``uw`` with :math:`s_k` negated, so both
    have the same optima, on different paths.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("imtl_l", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1., 1.])
    """

    paper = "Liu et al., Towards Impartial Multi-task Learning, ICLR 2021"
    url = "https://openreview.net/forum?id=IMPnRXEWpvr"
    idea = "Gradient balancing: no task dominates by its size"

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.add_learned("log_scales", 0.0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.exp(state.log_scales), state

    def loss_penalty(self, losses: Tensor, state: State) -> Tensor | None:
        penalty: Tensor = -state.log_scales.sum()
        return penalty
