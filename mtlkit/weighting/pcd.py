"""PCD: priority-constrained descent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError, unknown_name
from mtlkit.host import Matrix, as_array
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import constrained_descent_weights, precision, safe_divide, solve

__all__ = ["PCD"]


@register_method("pcd")
class PCD(GradientAggregator):
    r"""Follow the primary task's gradient, but grant every other task some progress.

    .. math:: \min_d \|d - \tilde G_1\|^2 \quad \text{subject to}\quad
        \langle \tilde G_j, d \rangle \ge \tau\, \|\tilde G_j\|^2 \ \text{ for } j > 1

    with gradients :math:`\tilde G_k = G_k / \sqrt{v_k}` divided by the root of the moving average
    :math:`v_k` of their squared norms (bias-corrected); then d is scaled to the norm of :math:`G_1`.
    Needs the Gram matrix only; the program is solved exactly, as a least distance problem. If
    :math:`G_1` is zero, so is the merged gradient; if no vector satisfies all constraints, it is
    :math:`G_1`, as in the paper. The authors' code tries all sets of active constraints, and adds
    :math:`\epsilon = 10^{-8}` to the average; here nothing depends on the scale.

    Args:
        primary: name of the primary task; without it the first, and if it is absent the first that
            is present.
        tau: share of its own normalised progress that each secondary task is granted, in [0, 1].
        beta: decay of the moving averages.
    """

    paper = (
        "Varam and AlHajri, Not All Objectives Are Born Equal: Priority-Constrained Descent for "
        "Hierarchical Multi-Objective Optimization, TMLR 2026"
    )
    year = 2026
    traceable = False
    waived_laws = {"permutation": "the first task is the primary one, unless another is named"}

    squares: Tensor
    seen: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        primary: str | int | None = None,
        tau: float = 0.02,
        beta: float = 0.999,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if primary is not None and str(primary) not in self.tasks:
            raise unknown_name("task", str(primary), self.tasks)
        if not 0 <= tau <= 1:
            raise SpecError(f"tau of pcd must be in [0, 1], not {tau}")
        if not 0 <= beta < 1:
            raise SpecError(f"beta of pcd must be in [0, 1), not {beta}")
        self.primary = primary
        self.tau = tau
        self.beta = beta
        self.register_buffer("squares", torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(len(self.tasks), dtype=torch.long))

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """Weights of the constrained direction."""
        squares, seen = self._averages(as_array(gram), step)
        self.carry(gram, squares)
        scales = np.sqrt(safe_divide(1 - self.beta**seen, squares, np))
        first = 0
        if self.primary is not None:
            present = range(len(gram)) if step is None else step.present
            wanted = self.tasks.index(str(self.primary))
            first = present.index(wanted) if wanted in present else 0
        return solve(self._direction, gram, scales, first, precision(gram))

    def update(self, step: Step) -> None:
        """Keep the moving averages."""
        squares = self.carried(step)
        if squares is None:
            squares, _ = self._averages(as_array(step.gram), step)
        self.remember("squares", squares, step)
        self.count("seen", step)

    def _averages(self, gram: Matrix, step: Step | None) -> tuple[Matrix, Matrix]:
        squares = self.squares if step is None else step.pick(self.squares)
        seen = self.seen if step is None else step.pick(self.seen)
        average = self.beta * as_array(squares) + (1 - self.beta) * gram.diagonal()
        return average, as_array(seen) + 1

    def _direction(self, gram: Matrix, scales: Matrix, first: int, rounding: float) -> Matrix:
        if first:
            order = np.array([first, *range(first), *range(first + 1, len(gram))])
            weights = np.empty(len(gram))
            weights[order] = self._direction(gram[order[:, None], order], scales[order], 0, rounding)
            return weights
        scaled = gram * scales[:, None] * scales
        if scaled[0, 0] == 0:
            return np.zeros(len(gram))
        found = constrained_descent_weights(scaled, self.tau)
        square = found.dot(scaled).dot(found)
        # a direction that is zero to rounding has no length to scale to that of the primary gradient
        if square <= rounding * found.dot(np.sqrt(scaled.diagonal())) ** 2:
            return np.zeros(len(gram))
        return found * scales * np.sqrt(gram[0, 0] / square)
