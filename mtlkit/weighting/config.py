"""ConFIG: the conflict-free inverse gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator
from mtlkit.weighting.solvers import closed_form, precision

__all__ = ["ConFIG"]


@register_method("config")
class ConFIG(GradientAggregator):
    r"""Go where all task gradients have the same positive cosine, as far as they ask together.

    With the unit gradients :math:`U_k = G_k / \|G_k\|` as rows of U,

    .. math:: v = \frac{U^+ 1}{\|U^+ 1\|}, \qquad
        \text{merged} = \Big( \sum_k \langle G_k, v \rangle \Big) v

    As :math:`U^+ = U^\top (U U^\top)^+`, all of it is in the cosine matrix :math:`C = U U^\top`: with
    :math:`a = C^+ 1` the weights are

    .. math:: w_k = \frac{\sum_i \|G_i\| (C a)_i}{a^\top C a} \frac{a_k}{\|G_k\|}

    so no (K, N) matrix is inverted. A task whose gradient is zero takes no part. Dependent gradients
    are served in the least-squares sense; where no direction serves them (two opposite
    gradients), the merged gradient is zero.

    Needs: features; the Gram matrix.

    Differences: none in the definition. Directions that rounding in the Gram matrix cannot tell from
    dependent ones (eigenvalues of C below its precision) count as dependent; the peers cut at the
    precision of U, whose singular values are the roots of these eigenvalues.
    """

    paper = (
        "Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks, "
        "ICLR 2025"
    )
    year = 2025

    def weights(self, gram: Tensor) -> Tensor:
        """Coefficients of the task gradients in the conflict-free one."""
        return closed_form(_conflict_free, gram, rounding=precision(gram)).to(gram.dtype)


def _conflict_free(xp: Any, gram: Any, rounding: float) -> Any:
    finite = xp.isfinite(gram).all()
    gram = xp.where(finite, gram, 0.0)
    norms = xp.sqrt(gram.diagonal())
    inverse = xp.where(norms > 0, 1 / norms, 0.0)
    values, vectors = xp.linalg.eigh(inverse[:, None] * gram * inverse)
    count = len(gram)
    resolved = values > values[-1] * (count * rounding * 8)
    products = xp.where(resolved, vectors.sum(0), 0.0)  # of 1 with the eigenvectors
    solution = vectors @ xp.where(resolved, products / values, 0.0)  # a
    served = vectors @ products  # C a
    # 1 is orthogonal to all resolved eigenvectors when the gradients cancel
    some = served @ served > (1e-10 * count) ** 2
    length = xp.where(some, norms @ served / (solution @ served), 0.0)
    return xp.where(finite, length * solution * inverse, xp.nan)
