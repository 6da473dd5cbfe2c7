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
from mtlkit.weighting.solvers import Matrix, precision

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
        self._averaged: tuple[Tensor, Tensor] | None = None

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """Coefficients of the task gradients in the sum of the vaccinated ones."""
        weights, targets = self._vaccinate(gram, step)
        self._averaged = (gram, targets)  # update() of the same step would compute the same again
        return weights.to(gram)

    def update(self, step: Step) -> None:
        """Keep the averages and move on to the next step's orders."""
        remembered, self._averaged = self._averaged, None
        if remembered is not None and remembered[0] is step.gram:
            remember_pairs(self.targets, remembered[1], step)
        elif step.present:
            remember_pairs(self.targets, self._vaccinate(step.gram, step)[1], step)
        self.random.advance(step.finite)

    def _vaccinate(self, gram: Tensor, step: Step | None) -> tuple[Tensor, Tensor]:
        targets = pick_pairs(self.targets, step)
        matrix = gram.detach().to("cpu", torch.float64).numpy()
        if not np.isfinite(matrix).all():
            return torch.full_like(targets[0], torch.nan), targets
        orders = self.random.permutations(len(gram), len(gram)).cpu().numpy()
        goals = targets.detach().cpu().numpy().copy()
        weights = _vaccinated(matrix, goals, orders, self.beta, 8 * precision(gram))
        return torch.from_numpy(weights), torch.from_numpy(goals)


def _vaccinated(gram: Matrix, goals: Matrix, orders: Matrix, beta: float, rounding: float) -> Matrix:
    """Weights of the sum; ``goals`` are moved in place."""
    count = len(gram)
    norms = np.sqrt(gram.diagonal())
    safe = np.where(norms == 0, 1, norms)
    cosines = gram / safe[:, None] / safe[None, :]
    tasks = np.arange(count)
    sines = np.sqrt(np.maximum(1 - goals * goals, 0))
    paired = (norms[:, None] > 0) & (norms[None, :] > 0) & (tasks[:, None] != tasks[None, :])
    limits = np.where(paired & (sines > 0), goals - rounding, -np.inf)
    slopes = goals / np.where(sines > 0, sines, 1)
    # row i: the gradient of task i in units of its norm, in terms of all unit gradients
    coefficients = np.eye(count)
    products = cosines.copy()
    squares = cosines.diagonal().copy()
    seen = goals.copy()
    for turn in range(count):
        onto = orders[:, turn]
        pairs = tasks * count + onto
        lengths = np.sqrt(np.maximum(squares, 0))
        along = products.take(pairs)
        cosine = along / np.where(lengths > 0, lengths, 1)
        seen.put(pairs, cosine)
        moved = cosine < limits.take(pairs)
        if not moved.any():
            continue
        sine = np.sqrt(np.maximum(1 - cosine * cosine, 0))
        step = np.where(moved, lengths * (slopes.take(pairs) * sine - cosine), 0)
        coefficients[tasks, onto] += step
        products += step[:, None] * cosines[onto]
        squares += step * (2 * along + step)
    goals += np.where(paired, beta * (np.clip(seen, -1, 1) - goals), 0)
    return (norms @ coefficients) / safe + (norms == 0)
