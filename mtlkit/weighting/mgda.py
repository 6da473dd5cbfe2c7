"""MGDA: the point of minimum norm in the convex hull of the task gradients."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import UsageError
from mtlkit.host import Matrix
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import min_norm_point, solve

__all__ = ["MGDA"]


@register_method("mgda")
class MGDA(GradientAggregator):
    r"""Follow the shortest vector in the convex hull of the task gradients.

    .. math:: \min_{w \ge 0,\ \sum_k w_k = 1} \Big\| \sum_k w_k\, \frac{G_k}{c_k} \Big\|^2

    and the gradients :math:`G_k` themselves get the weights w, as in the authors' code. At feature
    level (the default) this is MGDA-UB. Needs the Gram matrix only, and the losses for two of the
    normalisations. The optimum is found exactly, by an active-set method on the K x K Gram
    matrix, where the peers run Frank-Wolfe to a fixed tolerance; norms are those of the whole (batch,
    features) gradient. A task whose gradient is zero is Pareto stationary, so then the merged
    gradient is zero. Where the weights are not unique (dependent gradients), the shortest vector is.

    Args:
        normalize: the divisors :math:`c_k`, an option of the authors' code that the paper does not
            have: ``none`` is 1, ``l2`` the norm of the gradient, ``loss`` the loss, ``loss+`` their
            product. A task whose loss is zero is done, and gets weight zero.
    """

    paper = "Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018"
    year = 2018
    traceable = False

    def __init__(
        self,
        tasks: Tasks,
        *,
        normalize: Literal["none", "l2", "loss", "loss+"] = "none",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.normalize = normalize
        self.uses_losses = normalize in ("loss", "loss+")  # type: ignore[misc]

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """Barycentric coordinates of the point of minimum norm."""
        if self.normalize == "none":
            return solve(min_norm_point, gram)
        divisors = torch.ones_like(gram[0], dtype=torch.float64)
        if self.uses_losses:
            if step is None or step.losses is None:
                raise UsageError(
                    f"mgda(normalize={self.normalize!r}) needs the losses: call backward() on "
                    "method.total(losses), or use normalize='l2'"
                )
            divisors = divisors * step.losses.double().abs().to(gram.device)
        if self.normalize in ("l2", "loss+"):
            divisors = divisors * gram.diagonal().double().sqrt()
        if not bool(torch.isfinite(divisors).all()):
            return torch.full_like(gram[0], torch.nan)
        return solve(_normalised_min_norm, gram, divisors.cpu().numpy())


def _normalised_min_norm(gram: Matrix, divisors: Matrix) -> Matrix:
    # a zero gradient stays zero whatever it is divided by
    divisors = np.where(gram.diagonal() == 0, 1, divisors)
    weights = np.zeros(len(gram))
    chosen = np.flatnonzero(divisors)
    if not len(chosen):
        return np.full(len(gram), 1 / len(gram))
    divisors = divisors[chosen] / divisors[chosen].max()
    part = gram[np.ix_(chosen, chosen)]
    weights[chosen] = min_norm_point(part / divisors[:, None] / divisors[None, :])
    return weights
