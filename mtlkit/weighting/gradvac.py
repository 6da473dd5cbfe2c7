"""GradVac: gradient vaccine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.host import Matrix, as_array, as_tensor, is_finite
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.pairwise import pick_pairs, remember_pairs
from mtlkit.weighting.randomness import SharedRandom
from mtlkit.weighting.solvers import precision

__all__ = ["GradVac"]

# A cosine that none is below.
_NEVER = -2.0
# Stands in for the length of a gradient that a turn has made zero, where one divides by it.
_NOTHING = float(np.finfo(np.float64).tiny)


@register_method("gradvac")
class GradVac(GradientAggregator):
    r"""Turn each task's gradient towards the others until they are as aligned as they usually are.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order, with the
    cosine :math:`\phi` of g and :math:`G_j` and its moving average :math:`\hat\phi_{ij}`: if
    :math:`\phi < \hat\phi_{ij}`,

    .. math:: g \leftarrow g + \frac{\|g\| \big(
        \hat\phi_{ij} \sqrt{1 - \phi^2} - \phi \sqrt{1 - \hat\phi_{ij}^2}\big)}
        {\|G_j\| \sqrt{1 - \hat\phi_{ij}^2}}\, G_j

    which makes the cosine :math:`\hat\phi_{ij}`; then :math:`\hat\phi_{ij} \leftarrow (1 -
    \beta)\hat\phi_{ij} + \beta \phi`. The results are added. Averages start at zero, so the first
    step is PCGrad. All on coefficients, with the Gram matrix alone: K tasks at once, K - 1 turns. A
    cosine that is below its average by no more than rounding is left alone, and a zero gradient takes
    no part.

    Differences: the paper keeps averages for every layer or other group of parameters, and treats
    these apart; here, as in its ``whole_model`` variant, there is one gradient per task. LibMTL moves
    the average of a pair only when it turns that pair, which lets the averages only fall.

    Args:
        beta: how fast the averages follow: 0.01 remembers some hundred steps. LibMTL and TorchJD
            have 0.5, which remembers two or three.
        seed: of the random orders, which are the same on every process.
    """

    paper = (
        "Wang et al., Gradient Vaccine: Investigating and Improving Multi-task Optimization in "
        "Massively Multilingual Models, ICLR 2021"
    )
    year = 2021
    traceable = False
    waived_laws = {
        "permutation": "the order of the others is drawn per position (exact for two tasks)",
    }

    targets: Tensor

    def __init__(self, tasks: Tasks, *, beta: float = 0.01, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        if not 0 <= beta <= 1:
            raise SpecError(f"beta of gradvac must be in [0, 1], not {beta}")
        self.beta = beta
        self.seed = seed
        self.random = SharedRandom(seed)
        count = len(self.tasks)
        self.register_buffer("targets", torch.zeros(count, count, dtype=torch.float64))

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """Coefficients of the task gradients in the sum of the vaccinated ones."""
        weights, targets = self._vaccinate(gram, step)
        self.carry(gram, targets)
        return as_tensor(weights, gram)

    def update(self, step: Step) -> None:
        """Keep the averages and move on to the next step's orders."""
        targets = self.carried(step)
        if step.present:
            targets = self._vaccinate(step.gram, step)[1] if targets is None else targets
            remember_pairs(self.targets, targets, step)
        self.random.advance(step.finite)

    def _vaccinate(self, gram: Tensor, step: Step | None) -> tuple[Matrix, Matrix]:
        goals = as_array(pick_pairs(self.targets, step)).copy()
        matrix = as_array(gram)
        if not is_finite(matrix):
            return np.full(len(matrix), np.nan), goals
        orders = self.random.others(len(matrix))
        orders = orders.numpy(force=True) if isinstance(orders, Tensor) else orders
        return _vaccinated(matrix, goals, orders, self.beta, 8 * precision(gram)), goals


def _vaccinated(gram: Matrix, goals: Matrix, orders: Matrix, beta: float, rounding: float) -> Matrix:
    """Weights of the sum. (K, K - 1) ``orders`` are the others' turns; ``goals`` are moved in place."""
    count = len(gram)
    norms = np.sqrt(gram.diagonal())
    if not norms.all():
        return _among_the_others(norms > 0, gram, goals, orders, beta, rounding)
    # row i: the gradient of task i in units of its norm; its products with all unit gradients
    cosines = products = gram / (norms[:, None] * norms)
    turns = orders.T
    pairs = turns + np.arange(0, count * count, count)  # (turn, task): i and its j, as i K + j
    goal = goals.take(pairs)
    sine = np.sqrt(np.abs(1 - goal * goal))
    limit = goal - rounding
    if not sine.all():  # no turn towards a goal that only a parallel gradient has
        parallel = sine == 0
        limit[parallel], sine[parallel] = _NEVER, 1
    slope = goal / sine
    seen, lengths, steps = np.zeros((3, *pairs.shape))
    squares = cosines.diagonal()
    length = np.sqrt(squares)
    for turn, onto in enumerate(turns):
        along = products.take(pairs[turn], out=seen[turn], mode="clip")
        lengths[turn] = length
        moved = along < limit[turn] * length
        if not np.count_nonzero(moved):  # a third of the time of any()
            continue
        across = np.abs(squares - along * along)  # negative by rounding only
        step = np.multiply(slope[turn] * np.sqrt(across) - along, moved, out=steps[turn])
        products = products + step[:, None] * cosines.take(onto, axis=0)
        turned = along + step
        squares = across + turned * turned
        length = np.sqrt(squares)
    seen /= np.maximum(lengths, _NOTHING)
    goal += beta * (np.clip(seen, -1.0, 1.0) - goal)
    goals.put(pairs, goal)
    steps *= norms
    return 1 + np.bincount(turns.ravel(), steps.ravel(), count) / norms


def _among_the_others(
    active: Matrix, gram: Matrix, goals: Matrix, orders: Matrix, beta: float, rounding: float
) -> Matrix:
    """The same where some gradients are zero, which neither turn nor are turned to."""
    weights = np.ones(len(gram))
    if active.any():
        pairs = np.ix_(active, active)
        chosen = orders[active]
        chosen = chosen[active[chosen]].reshape(len(chosen), -1)
        inner = goals[pairs]
        number = np.cumsum(active) - 1
        weights[active] = _vaccinated(gram[pairs], inner, number[chosen], beta, rounding)
        goals[pairs] = inner
    return weights
