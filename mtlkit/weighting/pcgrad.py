"""PCGrad: project conflicting gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.randomness import random_orders
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, State, Tasks

__all__ = ["PCGrad"]


@register_method("pcgrad")
class PCGrad(GradientAggregator):
    r"""Drop from each task's gradient what conflicts with the others.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order

    .. math:: g \leftarrow g - \frac{\min(0, \langle g, G_j \rangle)}{\|G_j\|^2} G_j

    and the results are added (Algorithm 1 of the paper). The projections stay in the span of the task
    gradients, so the Gram matrix suffices: they are carried out on the coefficients.

    Length: K equal gradients g give K g.

    Differences: none from the paper. LibMTL and TorchJD add too. The authors' code discards its shuffle,
    so that its order is always that of the losses.

    Args:
        seed: of the random orders, which are the same on every process.
    """

    paper = "Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020"
    year = 2020
    waived_laws = {
        "permutation": "the projection order is drawn per position (exact for two tasks)",
    }

    def __init__(self, tasks: Tasks, *, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.seed = seed
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Coefficients of the task gradients in the sum of the projected ones."""
        exact = gram.double()
        orders = random_orders(self.seed, state.draws, len(gram))  # (K, K - 1): onto whom, and when
        onto = exact[orders]  # (K, K - 1, K) products of these with the task gradients
        squares = exact.diagonal()[orders]
        squares = torch.where(squares == 0, 1.0, squares)
        products, moves = exact, torch.zeros_like(squares)
        for turn in range(len(gram) - 1):
            product = products.gather(1, orders[:, turn, None])  # (K, 1)
            moves[:, turn, None] = move = (-product / squares[:, turn, None]).clamp_min(0)
            products = torch.addcmul(products, move, onto[:, turn])
        weights = torch.ones_like(exact[0]).index_add(0, orders.flatten(), moves.flatten())
        return weights, state.replace(draws=state.draws + 1)
