"""MGDA: the point of minimum norm in the convex hull of the task gradients."""

from __future__ import annotations

from torch import Tensor

from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator
from mtlkit.weighting.solvers import min_norm_point, solve

__all__ = ["MGDA"]


@register_method("mgda")
class MGDA(GradientAggregator):
    r"""Follow the shortest vector in the convex hull of the task gradients.

    .. math:: \min_{w \ge 0,\ \sum_k w_k = 1} \Big\| \sum_k w_k G_k \Big\|^2

    At feature level (the default) this is MGDA-UB. The optimum is found exactly, by an active-set
    method on the K x K Gram matrix, where the peers run Frank-Wolfe to a fixed tolerance; norms are
    those of the whole (batch, features) gradient. A task whose gradient is zero is Pareto
    stationary, so then the merged gradient is zero.
    """

    paper = "Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018"
    year = 2018
    traceable = False

    def weights(self, gram: Tensor) -> Tensor:
        """Barycentric coordinates of the point of minimum norm."""
        return solve(min_norm_point, gram)
