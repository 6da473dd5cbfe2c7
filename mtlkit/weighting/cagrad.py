"""CAGrad: conflict-averse gradient descent."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.gram import precision
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.host import solve
from mtlkit.weighting.solvers import conflict_averse_weights

__all__ = ["CAGrad"]


@register_method("cagrad")
class CAGrad(GradientAggregator):
    r"""Improve the worst-off task as much as possible, near the mean gradient.

    With :math:`G_0 = \frac1K \sum_k G_k`, the merged gradient is

    .. math:: \operatorname{argmax}_d\ \min_k \langle G_k, d \rangle \quad
        \text{subject to}\quad \|d - G_0\| \le c\,\|G_0\|

    which is :math:`d = G_0 + c\,\|G_0\|\, G_w / \|G_w\|` for the :math:`w` in the simplex that
    minimises :math:`\langle G_w, G_0\rangle + c\,\|G_0\|\,\|G_w\|`. Needs the Gram matrix only. The
    optimum is exact (a few non-negative least squares problems on the K x K matrix). The authors'
    code stops SLSQP at a tolerance, or takes 20 steps of gradient descent (reinforcement learning);
    TorchJD stops a conic solver.

    Two places that the paper leaves open: if the gradients are Pareto stationary and the minimum is
    at :math:`G_w = 0`, many d are optimal, and d is the one nearest to :math:`G_0` (TorchJD returns
    zero, which lies outside the ball if c < 1); and nothing is rescaled afterwards, so that a single
    task, or K equal ones, give :math:`(1 + c)\, G_0`. The authors' code divides by :math:`1 + c^2`
    and, in its experiments on images, multiplies by K, to match the sum of the losses.

    Args:
        c: radius of the ball, relative to the mean gradient; 0 is the mean. With c < 1 stationary
            points are those of the mean loss.
    """

    paper = "Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning, NeurIPS 2021"
    year = 2021
    waived_laws = {
        "single_task": "the best vector in the ball around a single gradient g is (1 + c) g",
    }
    traceable = False

    def __init__(self, tasks: Tasks, *, c: float = 0.4, **common: Any) -> None:
        super().__init__(tasks, **common)
        if not 0 <= c < math.inf:
            raise SpecError(f"c of cagrad must be 0 or more, not {c}")
        self.c = c

    def weights(self, gram: Tensor) -> Tensor:
        """The mean's weights and those of the correction."""
        return solve(conflict_averse_weights, gram, self.c, precision(gram)).to(gram.dtype)
