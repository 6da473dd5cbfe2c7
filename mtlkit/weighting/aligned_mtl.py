"""Aligned-MTL: independent component alignment."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import precision

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
        exact = gram.double()
        finite = torch.isfinite(exact).all()
        values, vectors = torch.linalg.eigh(torch.where(finite, exact, torch.zeros_like(exact)))
        largest = values[-1]
        kept = values > largest * len(gram) * precision(gram)
        inverse = torch.where(kept, torch.where(kept, values, 1.0).rsqrt(), 0.0)
        weights = (vectors * inverse) @ vectors.sum(dim=0) * self._scale(values, kept)
        weights = torch.where(largest > 0, weights, 1.0)
        return torch.where(finite, weights, torch.nan).to(gram.dtype)

    def _scale(self, values: Tensor, kept: Tensor) -> Tensor:
        rank = kept.sum()
        if self.scale_mode == "rmse":
            return (torch.where(kept, values, 0.0).sum() / rank.clamp(min=1)).sqrt()
        # values ascend, and those that are kept come last
        first = len(values) - rank
        index = first if self.scale_mode == "min" else first + (rank - 1) // 2
        return values[index.clamp(max=len(values) - 1)].clamp(min=0).sqrt()
