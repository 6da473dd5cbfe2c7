"""UW-SO: softmax-normalized optimal uncertainty weights."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Gt, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import inverse_losses


@register_method("uw_so")
class UWSO(GradientAggregator):
    r"""Weigh every loss by a softmax of the inverse losses, the weights that ``uw`` would learn.

    .. math:: w = \operatorname{softmax}\Big( \frac{1}{T L} \Big)

    For given losses, uncertainty weighting is optimal at weights proportional to :math:`1/L_k`; the
    softmax with the temperature T normalizes them. Nothing is learned, so that the weights follow the
    losses at once. The losses must be positive: a loss of zero takes no part in the step, a negative one
    makes the total NaN.

    Update scale: at equal losses every loss has the factor 1/K; the factors always sum to 1.

    Differences: none from the paper, which tunes T for each data set and names no default. We found no
    code by the authors. LibMTL and TorchJD do not have the method.

    Args:
        temperature: T, in units of 1/loss; larger values make the weights more equal.

    Example:
        >>> import mtlkit, torch
        >>> losses = [torch.tensor(value, requires_grad=True) for value in (1.0, 0.5)]
        >>> mtlkit.create_method("uw_so", 2).total(losses).backward()
        >>> [round(loss.grad.item(), 3) for loss in losses]  # softmax(1, 2)
        [0.269, 0.731]
    """

    paper = (
        "Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning, DAGM "
        "GCPR 2024"
    )
    url = "https://arxiv.org/abs/2408.07985"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"temperature": LogUniform(0.1, 100.0)}

    def __init__(
        self, tasks: Tasks, *, temperature: Annotated[float, Gt(0)] = 1.0, **common: Any
    ) -> None:
        super().__init__(tasks, **common)
        self.temperature = temperature

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        inverse = inverse_losses(losses)
        shifted = (inverse - inverse.max()) / self.temperature
        shifted = torch.where(losses == 0, -torch.inf, shifted)
        exponentials = shifted.exp()
        return safe_divide(exponentials, exponentials.sum()), state
