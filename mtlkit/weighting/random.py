"""Random gradient weighting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.randomness import SharedRandom

__all__ = ["Random"]


@register_method("random")
class Random(GradientAggregator):
    r"""Draw the weights of the gradients anew at every step.

    .. math:: w = \operatorname{softmax}(z), \qquad z_k \sim N(0, 1)

    (RGW of the paper; its RLW, random weights of the losses, is ``rlw``). Needs nothing, not even
    the Gram matrix. The draws are the same on every process.

    Args:
        seed: of the draws.
    """

    paper = (
        "Lin et al., Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task "
        "Learning, TMLR 2022"
    )
    year = 2022
    reads_gram = False
    waived_laws = {"permutation": "the weights are drawn per position"}

    def __init__(self, tasks: Tasks, *, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.seed = seed
        self.random = SharedRandom(seed)

    def weights(self, gram: Tensor) -> Tensor:
        """Softmax of standard normal numbers."""
        return torch.softmax(self.random.normal(len(gram)).double(), dim=0).to(gram)

    def update(self, step: Step) -> None:
        """Move on to the next step's weights."""
        self.random.advance(step.finite)
