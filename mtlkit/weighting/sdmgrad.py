"""SDMGrad: stochastic direction-oriented multi-objective descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtlkit.errors import SpecError
from mtlkit.host import Matrix
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import Tasks
from mtlkit.weighting.double_sampling import cross_gram
from mtlkit.weighting.simplex import SimplexWeights
from mtlkit.weighting.solvers import project_onto_simplex

__all__ = ["SDMGrad"]


@register_method("sdmgrad")
class SDMGrad(SimplexWeights):
    r"""Approach MGDA's weights by a few stochastic steps, held near the mean gradient.

    At every training step, ``n_iter`` steps of projected gradient descent with momentum on

    .. math:: \min_{w \in \Delta} \tfrac12 \Big\| \sum_k (w_k + \lambda u_k)\, G_k \Big\|^2,
        \qquad u_k = 1/K

    starting from the last weights; then the gradients get the weights :math:`(w + \lambda u) / (1 +
    \lambda)`. The products of gradients are divided by the square of the mean norm, so that ``lr`` has
    no unit (the authors' code takes the norms from the products of two samples, which may be
    negative). They come from two independent samples: the even and the odd samples of the batch that
    the features hold. The authors' code draws three batches, the third for the step itself. Under
    ``combine``, with ``wrt=parameters`` and for a single sample there is no axis of samples, and the
    Gram matrix stands in.

    Args:
        lam: pull towards the mean gradient.
        lr: step size of the inner descent. The authors' code uses 10, with which the descent jumps
            between corners of the simplex and makes rounding errors visible; 0.2 converges.
        momentum: of the inner descent.
        n_iter: number of inner steps.
    """

    paper = (
        "Xiao et al., Direction-oriented Multi-objective Learning: Simple and Provable Stochastic "
        "Algorithms, NeurIPS 2023"
    )
    year = 2023
    waived_laws = {
        "junction": "the features' gradients are compared between samples; combine is given no samples",
    }

    def __init__(
        self,
        tasks: Tasks,
        *,
        lam: float = 0.3,
        lr: float = 0.2,
        momentum: float = 0.5,
        n_iter: int = 20,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if not lam >= 0:
            raise SpecError(f"lam of sdmgrad must be 0 or more, not {lam}")
        if not lr > 0:
            raise SpecError(f"lr of sdmgrad must be positive, not {lr}")
        if not 0 <= momentum < 1:
            raise SpecError(f"momentum of sdmgrad must be in [0, 1), not {momentum}")
        if n_iter < 1:
            raise SpecError(f"n_iter of sdmgrad must be 1 or more, not {n_iter}")
        self.lam = lam
        self.lr = lr
        self.momentum = momentum
        self.n_iter = n_iter

    def move(self, shares: Matrix, gram: Matrix, step: Step | None) -> Matrix:
        """The inner descent."""
        count = len(shares)
        products = cross_gram(gram, step)
        size = (np.sqrt(gram.diagonal()).sum() / count) ** 2
        if size > 0:
            products = products / size
        # the point sums to one, so products @ (point + pull) is linear in it; the projection takes no
        # notice of a constant, and without their mean the steps leave the sum alone
        pull = self.lam / count
        field = self.lr * (products + pull * products.sum(axis=1, keepdims=True))
        field -= field.sum(axis=0) / count
        # velocity <- momentum velocity + field point, point <- point - velocity, as one product
        moving = np.empty((2 * count, 2 * count))
        moving[count:, :count] = field
        moving[count:, count:] = self.momentum * np.eye(count)
        np.negative(moving[count:], out=moving[:count])
        moving[:count, :count].flat[:: count + 1] += 1
        state = np.concatenate([shares, np.zeros(count)])
        for _ in range(self.n_iter):
            state = moving.dot(state)
            point = state[:count]
            if min(point.tolist()) < 0:  # for a few numbers, quicker than NumPy's
                point[:] = project_onto_simplex(point)
        return state[:count]

    def spread(self, point: Matrix) -> Matrix:
        """The point pulled towards the mean."""
        return (point + self.lam / len(point)) / (1 + self.lam)
