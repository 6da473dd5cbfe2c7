"""MoCo: multi-objective descent with gradient correction."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.host import Matrix, as_array
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import Tasks
from mtlkit.weighting.pairwise import pick_pairs, remember_pairs
from mtlkit.weighting.simplex import SimplexWeights
from mtlkit.weighting.solvers import project_onto_simplex

__all__ = ["MoCo"]


@register_method("moco")
class MoCo(SimplexWeights):
    r"""Approach MGDA's weights slowly, on inner products that are averaged over steps.

    .. math:: \mathbf{Y} \leftarrow \mathbf{Y} + \beta_t\,(\mathbf{G} - \mathbf{Y}), \qquad
        w \leftarrow \Pi\big(w - \gamma_t\,(\mathbf{Y} + \rho I)\, w\big)

    with the projection :math:`\Pi` onto the simplex, :math:`\beta_t = \beta / t^{\sigma_\beta}` and
    :math:`\gamma_t = \gamma / t^{\sigma_\gamma}`.

    Needs: features; the Gram matrix.

    Differences: the paper averages the gradients themselves, coordinate by coordinate, takes the Gram
    matrix of the averages, and steps along the averages. A feature's gradient belongs to one sample
    of one batch and has no counterpart in the next, so here the Gram matrix is averaged, and the
    weights are applied to the step's own gradients. The average of Gram matrices keeps the square of
    the batches' noise in its diagonal, which the Gram matrix of averages sheds; ``modo`` avoids that
    bias by other means. State is K x K numbers in place of K copies of the shared parameters, and is
    exact over processes. Y starts as the first Gram matrix, not at zero, and is divided by its mean
    diagonal, so that ``gamma`` has no unit; the authors' code takes the products as they are. LibMTL
    gives every gradient the length of its loss, and puts a softmax in place of the projection.

    Args:
        beta: step size of the average; the first step fills it.
        beta_sigma: how fast ``beta`` decays.
        gamma: step size of the weights.
        gamma_sigma: how fast ``gamma`` decays.
        rho: weight of the penalty on :math:`\|w\|^2`.
    """

    paper = (
        "Fernando et al., Mitigating Gradient Bias in Multi-objective Learning: A Provably Convergent "
        "Approach, ICLR 2023"
    )
    year = 2023

    tracked: Tensor
    steps: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        beta: float = 0.5,
        beta_sigma: float = 0.5,
        gamma: float = 0.1,
        gamma_sigma: float = 0.5,
        rho: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if not 0 < beta <= 1:
            raise SpecError(f"beta of moco must be in (0, 1], not {beta}")
        if not gamma > 0:
            raise SpecError(f"gamma of moco must be positive, not {gamma}")
        for name, value in (("beta_sigma", beta_sigma), ("gamma_sigma", gamma_sigma), ("rho", rho)):
            if not value >= 0:
                raise SpecError(f"{name} of moco must be 0 or more, not {value}")
        self.beta = beta
        self.beta_sigma = beta_sigma
        self.gamma = gamma
        self.gamma_sigma = gamma_sigma
        self.rho = rho
        count = len(self.tasks)
        self.register_buffer("tracked", torch.zeros(count, count, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(0))

    def move(self, shares: Matrix, gram: Matrix, step: Step | None) -> Matrix:
        """One projected step on the averaged products."""
        products = self._average(gram, step)
        size = products.diagonal().mean()
        if size > 0:
            products = products / size
        gamma = self.gamma / (int(self.steps) + 1) ** self.gamma_sigma
        return project_onto_simplex(shares - gamma * (products @ shares + self.rho * shares))

    def update(self, step: Step) -> None:
        """Keep the point and the average."""
        super().update(step)
        if not step.present:
            return
        average = self._average(as_array(step.gram), step)
        remember_pairs(self.tracked, average, step)
        self.count("steps", step)

    def _average(self, gram: Matrix, step: Step | None) -> Matrix:
        tracked = as_array(pick_pairs(self.tracked, step))
        beta = self.beta / (int(self.steps) + 1) ** self.beta_sigma
        average = tracked + beta * (gram - tracked)
        new = tracked.diagonal() == 0
        return np.where(new[:, None] | new, gram, average) if new.any() else average
