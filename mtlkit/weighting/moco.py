"""MoCo: multi-objective descent with gradient correction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.gram import safe_divide
from mtlkit.registry import register_method
from mtlkit.weighting.base import State, Tasks
from mtlkit.weighting.forms.simplex import SimplexWeights, project_onto_simplex

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
        if not 0 < gamma < math.inf:
            raise SpecError(f"gamma of moco must be positive, not {gamma}")
        for name, value in (("beta_sigma", beta_sigma), ("gamma_sigma", gamma_sigma), ("rho", rho)):
            if not 0 <= value < math.inf:
                raise SpecError(f"{name} of moco must be 0 or more, not {value}")
        self.beta = beta
        self.beta_sigma = beta_sigma
        self.gamma = gamma
        self.gamma_sigma = gamma_sigma
        self.rho = rho
        self.needs_whole_gradients = self.wrt == "parameters"
        if self.needs_whole_gradients:
            self.add_state("tracked", per="coordinate")
        else:
            self.add_state("tracked", 0.0, per="pair")
        self.add_state("steps", 0, per="all")

    def move(self, shares: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """One projected step on the averaged products."""
        average = state.tracked + self._beta(state) * (gram - state.tracked)
        new = state.tracked.diagonal() == 0
        average = torch.where(new[:, None] | new, gram, average)
        products = safe_divide(average, average.diagonal().mean())
        return self._descend(shares, products, state), state.replace(
            tracked=average, steps=state.steps + 1
        )

    def merge_rows(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """The paper's own rule: average the gradients, and step along the averages."""
        old = state.tracked if state.tracked.shape[1] else torch.zeros_like(grads)
        average = old + self._beta(state).to(grads.dtype) * (grads - old)
        exact = average.double()
        total = state.shares.sum()
        shares = self._descend(safe_divide(state.shares, total), exact @ exact.T, state)
        return shares.to(grads.dtype) @ average, state.replace(
            tracked=average, shares=shares * total, steps=state.steps + 1
        )

    def _descend(self, shares: Tensor, products: Tensor, state: State) -> Tensor:
        gamma = self.gamma / (state.steps + 1).double() ** self.gamma_sigma
        return project_onto_simplex(shares - gamma * (products @ shares + self.rho * shares))

    def _beta(self, state: State) -> Tensor:
        return self.beta / (state.steps + 1).double() ** self.beta_sigma
