"""GradVac: gradient vaccine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.pairwise import pick_pairs, remember_pairs
from mtlkit.weighting.randomness import SharedRandom
from mtlkit.weighting.solvers import Matrix, as_array, as_tensor, is_finite, precision

__all__ = ["GradVac"]

# A cosine that none is below.
_NEVER = -2.0
# Stands in for the length of a vanished gradient, whose products are zero, where one divides by it.
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
    step is PCGrad. All on coefficients, with the Gram matrix alone: K tasks at once, K turns. A
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

    def _vaccinate(self, gram: Tensor, step: Step | None) -> tuple[Matrix, Tensor]:
        targets = pick_pairs(self.targets, step)
        matrix = as_array(gram)
        if not is_finite(matrix):
            return np.full(len(matrix), np.nan), targets
        orders = self.random.permutations(len(matrix), len(matrix)).numpy(force=True)
        goals = as_array(targets).copy()
        weights = _vaccinated(matrix, goals, orders, self.beta, 8 * precision(gram))
        return weights, torch.from_numpy(goals)


def _vaccinated(gram: Matrix, goals: Matrix, orders: Matrix, beta: float, rounding: float) -> Matrix:
    """Weights of the sum; ``goals`` are moved in place."""
    count = len(gram)
    norms = np.sqrt(gram.diagonal())
    nothing = norms == 0
    safe = norms + nothing
    cosines = gram / safe[:, None] / safe
    tasks = np.arange(count)
    sines = np.sqrt(np.maximum(1 - goals * goals, 0))
    parallel = sines == 0
    # no turn towards itself, towards a goal that only a parallel gradient has, to nothing or of it
    limits = np.where(parallel, _NEVER, goals - rounding)
    limits.flat[:: count + 1] = _NEVER
    if nothing.any():
        limits[nothing] = limits[:, nothing] = _NEVER
    # row i: the gradient of task i in units of its norm; its products with all unit gradients
    products = cosines.copy()
    squares = cosines.diagonal()
    pairs = tasks * count + orders.T  # (turn, task): task i and the one it turns towards, as i K + j
    limit, slope = limits.take(pairs), (goals / (sines + parallel)).take(pairs)
    seen, lengths, steps = np.zeros((3, count, count))  # (turn, task)
    rows = np.empty_like(cosines)
    length = np.sqrt(squares)
    for turn, onto in enumerate(orders.T):
        along = products.take(pairs[turn], out=seen[turn], mode="clip")
        lengths[turn] = length
        moved = along < limit[turn] * length
        if not moved.any():
            continue
        across = np.maximum(squares - along * along, 0)
        step = np.multiply(slope[turn] * np.sqrt(across) - along, moved, out=steps[turn])
        np.take(cosines, onto, axis=0, out=rows, mode="clip")
        rows *= step[:, None]
        products += rows
        turned = along + step
        squares = across + turned * turned
        length = np.sqrt(squares)
    seen /= np.maximum(lengths, _NOTHING)
    # every pair has had its turn once: back from (turn, task) to (task, task)
    cosine_of_pair = np.empty((count, count))
    cosine_of_pair.put(pairs, seen)
    change = beta * (np.minimum(np.maximum(cosine_of_pair, -1), 1) - goals)
    change.flat[:: count + 1] = 0
    if nothing.any():
        change[nothing] = change[:, nothing] = 0
    goals += change
    steps *= norms
    return (norms + np.bincount(orders.T.ravel(), steps.ravel(), count)) / safe + nothing
