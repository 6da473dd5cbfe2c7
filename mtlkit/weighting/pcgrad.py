"""PCGrad: project conflicting gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.host import as_array, as_tensor
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.randomness import SharedRandom

__all__ = ["PCGrad"]


@register_method("pcgrad")
class PCGrad(GradientAggregator):
    r"""Drop from each task's gradient what conflicts with the others.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order

    .. math:: g \leftarrow g - \frac{\min(0, \langle g, G_j \rangle)}{\|G_j\|^2} G_j

    and the results are added (Algorithm 1 of the paper). The projections stay in the span of the task
    gradients, so they are carried out on the coefficients, with the Gram matrix alone: all K tasks at
    once, K - 1 steps.

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
        self.random = SharedRandom(seed)

    def weights(self, gram: Tensor) -> Tensor:
        """Coefficients of the task gradients in the sum of the projected ones."""
        count = len(gram)
        turns = self.random.others(count).T  # (K - 1, K) column i: whom i is projected onto
        if count == 1:
            return torch.ones_like(gram[0])
        if isinstance(turns, np.ndarray):
            # the same operations, which cost a third of the time on small NumPy arrays
            with np.errstate(all="ignore"):  # gradients that are not finite give weights that are not
                moves = np.array(_moves(np, as_array(gram), turns, np.arange(count)))
            return as_tensor(1 + np.bincount(turns.ravel(), moves.ravel(), count), gram)
        tasks = torch.arange(count, device=gram.device)
        moved = torch.stack(_moves(torch, gram.detach().double(), turns, tasks))
        weights = torch.ones_like(moved[0]).index_add(0, turns.flatten(), moved.flatten())
        return weights.to(gram.dtype)

    def update(self, step: Step) -> None:
        """Move on to the next step's orders."""
        self.random.advance(step.finite)


def _moves(xp: Any, gram: Any, turns: Any, tasks: Any) -> list[Any]:
    """How far each task moves along the gradient that it is projected onto, turn by turn."""
    squares = gram.diagonal()
    factors = xp.where(squares == 0, 0.0, -1 / squares)[turns]
    products = gram  # (K, K) inner products of the projected gradients with the task gradients
    moves = []
    for onto, factor in zip(turns, factors, strict=True):
        product = products[tasks, onto]
        move = product * (product < 0) * factor
        products = products + move[:, None] * gram[onto]
        moves.append(move)
    return moves
