"""Aligned-MTL: independent component alignment."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import closed_form, precision

__all__ = ["AlignedMTL"]


@register_method("aligned_mtl")
class AlignedMTL(GradientAggregator):
    r"""Replace the task gradients by the nearest ones that are orthogonal and of one length, and add.

    With the gradient matrix :math:`U \Sigma V^\top` (tasks in columns), the aligned gradients are
    :math:`\sigma\, U V^\top`, of condition number 1, so the weights are

    .. math:: w = \sigma\, V \Sigma^{-1} V^\top \mathbf{1}

    found from the eigenvalues of the Gram matrix, which is all that is needed. Gradients that are
    linearly dependent have singular values that are zero to rounding; these are left out. The
    aligned gradients are added, as in the authors' code (TorchJD takes their mean).

    Args:
        scale_mode: what :math:`\sigma` is: ``min``, the smallest singular value (the paper's choice),
            ``median``, or ``rmse``, the root of the mean eigenvalue.
    """

    paper = "Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023"
    year = 2023

    def __init__(
        self,
        tasks: Tasks,
        *,
        scale_mode: Literal["min", "median", "rmse"] = "min",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.scale_mode = scale_mode

    def weights(self, gram: Tensor) -> Tensor:
        """Row sums of the balance transformation."""
        return closed_form(self._aligned, gram, rounding=precision(gram)).to(gram.dtype)

    def _aligned(self, xp: Any, gram: Any, rounding: float) -> Any:
        finite = xp.isfinite(gram).all()
        values, vectors = xp.linalg.eigh(xp.where(finite, gram, 0.0))
        largest = values[-1]
        kept = values > largest * len(gram) * rounding
        inverse = xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, 1.0)), 0.0)
        weights = (vectors * inverse) @ vectors.sum(0) * self._scale(xp, values, kept)
        weights = xp.where(largest > 0, weights, 1.0)
        return xp.where(finite, weights, xp.nan)

    def _scale(self, xp: Any, values: Any, kept: Any) -> Any:
        """Of no meaning where no value is kept."""
        if self.scale_mode == "min":
            return xp.sqrt(xp.where(kept, values, values[-1]).min())
        rank = kept.sum()
        if self.scale_mode == "rmse":
            return xp.sqrt(xp.where(kept, values, 0.0).sum() / rank)
        # values ascend, and those that are kept come last
        return xp.sqrt(values[len(values) - rank + (rank - 1) // 2])
