"""GradVac: gradient vaccine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.gram import cosine_matrix, norms_of, precision, safe_divide
from mtlkit.randomness import random_orders
from mtlkit.registry import register_method
from mtlkit.search import LogUniform
from mtlkit.weighting.base import GradientAggregator, State, Tasks

__all__ = ["GradVac"]


@register_method("gradvac")
class GradVac(GradientAggregator):
    r"""Turn each task's gradient towards the others until they are as aligned as they usually are.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order, with the
    cosine :math:`\phi` of g and :math:`G_j` and its moving average :math:`\hat\phi_{ij}`: if
    :math:`\phi < \hat\phi_{ij}`,

    .. math:: g \leftarrow g + \frac{\|g\| \big(
        \hat\phi_{ij} \sqrt{1 - \phi^2} - \phi \sqrt{1 - \hat\phi_{ij}^2}\big)}
        {\|G_j\| \sqrt{1 - \hat\phi_{ij}^2}}\, G_j

    which makes the cosine :math:`\hat\phi_{ij}`; then, whether it turned or not,
    :math:`\hat\phi_{ij} \leftarrow (1 - \beta)\hat\phi_{ij} + \beta \phi`. The results are added.
    Averages start at zero, so the first step is PCGrad. Only the Gram matrix is needed: all K gradients
    turn at once, as rows of coefficients, in K - 1 rounds. A cosine that is below its average by no
    more than rounding is left alone, and a zero gradient takes no part.

    Length: K equal gradients g give K g.

    Differences: the paper keeps averages for every layer or other group of parameters, and treats
    these apart. Here there is one gradient per task, the paper's ``whole_model``, which is LibMTL's
    default too. LibMTL and TorchJD, too, move the average at every pair (LibMTL 1.1.5 only where it
    turned a gradient).

    Args:
        beta: how fast the averages follow. 0.01, the paper's value, remembers some hundred steps;
            LibMTL and TorchJD have 0.5, which remembers two or three.
        seed: of the random orders, which are the same on every process.
    """

    paper = (
        "Wang et al., Gradient Vaccine: Investigating and Improving Multi-task Optimization in "
        "Massively Multilingual Models, ICLR 2021"
    )
    year = 2021
    waived_laws = {
        "permutation": "the order of the others is drawn per position (exact for two tasks)",
    }
    search_space = {"beta": LogUniform(0.005, 0.5)}

    def __init__(self, tasks: Tasks, *, beta: float = 0.01, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        if not 0 <= beta <= 1:
            raise SpecError(f"beta of gradvac must be in [0, 1], not {beta}")
        self.beta = beta
        self.seed = seed
        self.add_state("goals", 0.0, per="pair")
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Coefficients of the task gradients in the sum of the turned ones."""
        norms, unit = norms_of(gram), cosine_matrix(gram)
        orders = random_orders(self.seed, state.draws, len(gram))  # (K, K - 1) whom each turns to
        goals = state.goals.gather(1, orders)
        sines = (1 - goals.square()).clamp(min=0).sqrt()
        slopes, limits = safe_divide(goals, sines), goals - precision(gram)
        meets = (norms[:, None] > 0) & (norms[orders] > 0)
        able = meets & (sines > 0)
        # row i belongs to the gradient of task i as it turns, in units of its first norm
        products = unit  # (K, K) with the unit task gradients
        squares = unit.diagonal()
        cosines, moves = [], []
        for turn, others in enumerate(orders.T):
            along = products.gather(1, others[:, None])[:, 0]
            cosine = safe_divide(along, squares.clamp(min=0).sqrt()).clamp(-1, 1)
            across = (squares - along.square()).clamp(min=0).sqrt()
            turns = able[:, turn] & (cosine < limits[:, turn])
            move = torch.where(turns, slopes[:, turn] * across - along, 0.0)
            products = torch.addcmul(products, move[:, None], unit[others])
            squares = squares + move * (2 * along + move)
            cosines.append(cosine)
            moves.append(move)
        if not moves:
            return torch.ones_like(norms), state.replace(draws=state.draws + 1)
        seen, moved = torch.stack(cosines, dim=1), torch.stack(moves, dim=1)  # (K, K - 1)
        shares = safe_divide(moved * norms[:, None], norms[orders])
        weights = torch.ones_like(norms).index_add(0, orders.flatten(), shares.flatten())
        followed = torch.where(meets, goals + self.beta * (seen - goals), goals)
        return weights, state.replace(
            goals=state.goals.scatter(1, orders, followed), draws=state.draws + 1
        )
