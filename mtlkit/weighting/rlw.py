"""RLW: random loss weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.errors import unknown_name
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.randomness import SharedRandom

__all__ = ["RLW"]

_DISTRIBUTIONS = ("normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli")


@register_method("rlw")
class RLW(GradientAggregator):
    r"""Draw new weights of the losses at every step.

    .. math:: w = \operatorname{softmax}(\tilde w), \qquad \tilde w_k \sim N(0, 1)

    ========================= ==============================================================
    ``dist``                  weights
    ========================= ==============================================================
    ``normal``                softmax of standard normal numbers
    ``uniform``               softmax of uniform numbers of [0, 1)
    ``dirichlet``             uniform on the simplex
    ``bernoulli``             each 0 or 1 with equal chance, not all 0
    ``constrained_bernoulli`` one task, chosen at random, has weight 1
    ========================= ==============================================================

    Needs: nothing but to know which tasks are present; the weights are drawn for those. Every
    process draws the same weights, and a step that is not finite is drawn again.

    Differences: LibMTL also applies the softmax to the Dirichlet weights, which are normalised already.

    Args:
        dist: distribution of the weights.
        seed: of the draws.
    """

    paper = (
        "Lin et al., Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task "
        "Learning, TMLR 2022"
    )
    year = 2022
    # the values do not enter, but all processes must agree on who is present and on a finite step
    uses_losses = True
    waived_laws = {"permutation": "the weights are drawn per position"}

    def __init__(
        self,
        tasks: Tasks,
        *,
        dist: Literal["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"] = "normal",
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if dist not in _DISTRIBUTIONS:
            raise unknown_name("dist of rlw", str(dist), _DISTRIBUTIONS)
        self.dist = dist
        self.seed = seed
        self.random = SharedRandom(seed)

    def loss_weights(self, losses: Tensor) -> Tensor:
        """This step's draw."""
        return self._draw(len(losses)).to(losses)

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Move on to the next step's draw."""
        self.random.advance(step.finite)

    def _draw(self, count: int) -> Tensor:
        if self.dist == "normal":
            return self.random.normal(count).softmax(dim=0)
        uniform = self.random.uniform(count)
        if self.dist == "uniform":
            return uniform.softmax(dim=0)
        if self.dist == "dirichlet":
            # exponential numbers, divided by their sum; U = 0 gives 0, which must not be all there is
            exponential = -torch.log1p(-uniform) + torch.finfo(torch.float32).tiny
            return exponential / exponential.sum()
        position = torch.arange(count, device=uniform.device)
        chance = self.random.uniform(1, stream=2)
        if self.dist == "constrained_bernoulli":
            return (position == (chance * count).long()).float()
        # the first 1 is at position j with chance 2^-(j+1), given that there is one; later ones are free
        below = (1 - 0.5 ** (position + 1)) / (1 - 0.5**count)
        first = (chance >= below[:-1]).sum()
        return ((position == first) | ((position > first) & (uniform < 0.5))).float()
