"""RLW: random loss weights."""

from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Choice, register_method
from mtlkit.engine.randomness import normal, uniform
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("rlw")
class RLW(GradientAggregator):
    r"""Draw new weights of the losses at every step.

    .. math:: w = \operatorname{softmax}(\tilde w), \qquad \tilde w_k \sim N(0, 1)

    The distributions ``dist``:

    - ``normal``: softmax of standard normal numbers
    - ``uniform``: softmax of uniform numbers of [0, 1)
    - ``dirichlet``: uniform on the simplex
    - ``bernoulli``: each 0 or 1 with equal chance, not all 0
    - ``constrained_bernoulli``: one task, chosen at random, has weight 1

    The weights are drawn for the tasks that are present. Every process draws the same weights.

    Update scale: the factors of the losses sum to one, so each is 1/K on average; those of ``bernoulli``
    are 0 or 1, on average :math:`2^{K-1} / (2^K - 1)`.

    Differences: none from the paper. LibMTL and TorchJD now have the normal distribution only. LibMTL's
    release 1.1.5 had all five, with a softmax also on the Dirichlet weights.

    Args:
        dist: distribution of the weights.
        seed: seed of the draws.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("rlw", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1.5662, 0.1446])
    """

    paper = (
        "Lin et al., Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task "
        "Learning, TMLR 2022"
    )
    url = "https://arxiv.org/abs/2111.10603"
    idea = "Weigh losses: by uncertainty, progress or chance"
    waived_laws = {"permutation": "the weights are drawn per position"}
    search_space = {"dist": Choice("normal", "uniform", "dirichlet", "bernoulli")}

    def __init__(
        self,
        tasks: Tasks,
        *,
        dist: Literal["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"] = "normal",
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.dist = dist
        self.seed = seed
        self.add_state("draws", 0, per="all")

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        return self._draw(len(losses), state.draws), state.replace(draws=state.draws + 1)

    def _draw(self, count: int, draws: Tensor) -> Tensor:
        if self.dist == "normal":
            return normal(self.seed, draws, count).softmax(dim=0)
        drawn = uniform(self.seed, draws, count)
        if self.dist == "uniform":
            return drawn.softmax(dim=0)
        if self.dist == "dirichlet":
            # exponential numbers, divided by their sum; the tiny number keeps the sum above zero
            exponential = -torch.log1p(-drawn) + torch.finfo(torch.float32).tiny
            return exponential / exponential.sum()
        position = torch.arange(count, device=drawn.device)
        chance = uniform(self.seed, draws, 1, stream=2)
        if self.dist == "constrained_bernoulli":
            return (position == (chance * count).long()).float()
        # the first 1 is at position j with chance 2^-(j+1), given that there is one; later ones are
        # independent
        below = (1 - 0.5 ** (position + 1)) / (1 - 0.5**count)
        first = (chance >= below[:-1]).sum()
        return ((position == first) | ((position > first) & (drawn < 0.5))).float()
