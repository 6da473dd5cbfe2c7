"""SoftAdapt: weigh losses by their rates of change."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("softadapt")
class SoftAdapt(GradientAggregator):
    r"""Give more weight to losses that fall more slowly, or rise.

    .. math:: w_k = \frac{e^{\beta s_k}}{\sum_j e^{\beta s_j}}, \qquad s_k \approx \frac{d L_k}{d t}

    with the rate of change :math:`s_k` per step, a backward difference over the last ``points`` losses:
    :math:`L_k^t - L_k^{t-1}` for two. Two variants of the paper can be combined: ``normalized`` divides
    the rates by :math:`\sum_j |s_j|`, so that their unit does not matter, and ``loss_weighted``
    multiplies each exponential by the mean of these losses. The rate is zero until a task has seen
    enough losses. Steps without a task's labels do not count for it.

    Update scale: at equal losses every loss has the factor 1/K; the factors always sum to 1.

    Differences: the authors' package leaves it to the caller how often the weights are updated (its
    examples do so every five epochs); here it is every step. With more than two points the package takes
    the rate at the oldest of them (a forward difference), not at the newest. To normalize, it divides by
    the sum of the rates, which may be negative or zero; the sum of their absolute values vanishes only
    if all rates do. It adds 1e-8 to the softmax's denominator. LibMTL and TorchJD do not have the
    method.

    Args:
        beta: how strongly the rates count; negative values favor losses that fall faster.
        points: number of losses in the finite difference, 2 or more.
        normalized: whether the rates are divided by the sum of their absolute values.
        loss_weighted: whether the weights are proportional to the losses as well.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("softadapt(beta=1)", 2)
        >>> for values in ((4.0, 2.0), (3.0, 2.0)):
        ...     losses = [torch.tensor(value, requires_grad=True) for value in values]
        ...     method.total(losses).backward()
        >>> [round(loss.grad.item(), 3) for loss in losses]  # softmax(-1, 0)
        [0.269, 0.731]
    """

    paper = (
        "Heydari et al., SoftAdapt: Techniques for Adaptive Loss Weighting of Neural Networks with "
        "Multi-Part Loss Functions, arXiv 1912.12355, 2019"
    )
    url = "https://arxiv.org/abs/1912.12355"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {
        "beta": LogUniform(0.01, 10.0),
        "normalized": Choice(False, True),
        "loss_weighted": Choice(False, True),
    }

    def __init__(
        self,
        tasks: Tasks,
        *,
        beta: float = 0.1,
        points: Annotated[int, Ge(2)] = 2,
        normalized: bool = False,
        loss_weighted: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.beta = beta
        self.points = points
        self.normalized = normalized
        self.loss_weighted = loss_weighted
        self.coefficients = backward_difference(points)
        self.add_state("history", 0.0, size=points)
        self.add_state("seen", 0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        history = torch.cat([state.history[:, 1:], losses.double()[:, None]], dim=1)
        seen = state.seen + 1
        columns = zip(self.coefficients, history.unbind(dim=1), strict=True)
        rates = torch.stack([factor * column for factor, column in columns]).sum(dim=0)
        rates = torch.where(seen >= self.points, rates, 0.0)
        if self.normalized:
            rates = safe_divide(rates, rates.abs().sum())
        weights = (self.beta * rates).softmax(dim=0)
        if self.loss_weighted:
            weights = weights * history.sum(dim=1) / seen.clamp(max=self.points)
            weights = safe_divide(weights, weights.sum())
        return weights, state.replace(history=history, seen=seen)


def backward_difference(points: int) -> list[float]:
    """Coefficients of equally spaced values, oldest first, in the derivative at the last one.

    It is the sum of the m-th backward differences divided by m, exact for polynomials of a degree below
    the number of points.
    """
    newest_first = [
        sum((-1) ** j * math.comb(m, j) / m for m in range(max(j, 1), points)) for j in range(points)
    ]
    return newest_first[::-1]
