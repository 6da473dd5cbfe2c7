"""GO4Align: one weight for all tasks of a group."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mtlkit.config import Choice, Ge, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("go4align")
class GO4Align(GradientAggregator):
    r"""Divide the tasks into groups that progress alike, and give each group one weight.

    .. math:: p_k \leftarrow \frac{p_k\, e^{-\eta L_k}}{\sum_j p_j\, e^{-\eta L_j}}, \qquad
        s_k = p_k \frac{\sum_j L_j}{L_k}, \qquad w_k = \frac{1}{|C_k|} \sum_{j \in C_k} s_j

    with the group :math:`C_k` of task k in the best partition of the numbers s into ``num_groups``
    groups (one-dimensional k-means). p is 1/K at first. An absent task keeps its :math:`p_k`. A loss of
    zero has :math:`s_k = 0`; a negative one makes the total NaN.

    Update scale: at equal losses every loss has the factor 1 in the first step.

    Differences: the best partition of numbers consists of intervals and is found exactly, by dynamic
    programming; the authors' code runs k-means from random centers, which may stop at another partition
    and draws differently on every process. LibMTL and TorchJD do not have the method.

    Args:
        num_groups: number of groups; not more than there are tasks in a step. The paper has 2 for NYUv2
            and 5 for QM9.
        eta: step size of p, in units of 1/loss.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("go4align", 3)
        >>> losses = [torch.tensor(value, requires_grad=True) for value in (1.0, 1.1, 4.0)]
        >>> method.total(losses).backward()
        >>> [round(loss.grad.item(), 2) for loss in losses]
        [1.94, 1.94, 0.51]
    """

    paper = "Shen et al., GO4Align: Group Optimization for Multi-Task Alignment, NeurIPS 2024"
    url = "https://arxiv.org/abs/2404.06486"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"num_groups": Choice(1, 2, 3, 5), "eta": LogUniform(1e-5, 1e-2)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        num_groups: Annotated[int, Ge(1)] = 2,
        eta: Annotated[float, Ge(0)] = 1e-4,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.num_groups = num_groups
        self.eta = eta
        self.add_state("log_p", -math.log(len(self.tasks)))

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        exact = torch.where(losses < 0, torch.nan, losses.double())
        # p is kept as its logarithm, so that it cannot underflow
        log_p = (state.log_p.log_softmax(dim=0) - self.eta * exact).log_softmax(dim=0)
        s = log_p.exp() * safe_divide(exact.sum(), exact)
        weights = group_means(s, min(self.num_groups, len(s)))
        # the present tasks keep the sum of their p
        return weights, state.replace(log_p=log_p + state.log_p.logsumexp(dim=0))


def group_means(values: Tensor, groups: int) -> Tensor:
    """Replace each value by the mean of its group, in the partition with the least squared deviations.

    In order, the groups of the best partition are intervals, so that it is found exactly: the best
    partition of the values up to j has a last interval i..j and a best partition of those up to i - 1.
    """
    order = values.argsort()
    x = values.gather(0, order)
    place = torch.arange(len(x), device=x.device)
    centered = x - x.mean()
    ends = pad(torch.stack([centered, centered.square()]).cumsum(dim=1), (1, 0))  # (2, K + 1)
    sums, squares = ends[:, None, 1:] - ends[:, :-1, None]  # of the values i..j, (K, K) each
    inside = place >= place[:, None]
    cost = squares - sums.square() / torch.where(inside, place - place[:, None] + 1, 1)
    cost = torch.where(inside, cost, torch.inf)
    best, firsts = cost[0], [torch.zeros_like(place)]
    for _ in range(groups - 1):
        best, first = (pad(best[:-1], (1, 0), value=torch.inf)[:, None] + cost).min(dim=0)
        firsts.append(first)
    means, last = x, place[-1:]
    for first in reversed(firsts):
        start = first.gather(0, last)
        group = (place >= start) & (place <= last)
        means = torch.where(group, torch.where(group, x, 0.0).sum() / group.sum(), means)
        last = (start - 1).clamp(min=0)
    return means.gather(0, order.argsort())
