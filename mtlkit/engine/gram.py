"""Formulas on Gram matrices, the (K, K) inner products of K task gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with zero where the denominator is zero."""
    return torch.where(denominator.bool(), numerator / denominator, 0.0)


def norms_of(gram: Tensor) -> Tensor:
    """(K,) norms of the task gradients in float64."""
    return gram.diagonal().double().sqrt()


def cosine_matrix(gram: Tensor) -> Tensor:
    """(K, K) cosines of the task gradients in float64; a zero gradient has cosine zero with all."""
    norms = norms_of(gram)
    return safe_divide(gram, torch.outer(norms, norms))


def eps_of(gram: Tensor) -> float:
    """Relative rounding error of the Gram matrix: that of the type it was computed in."""
    return float(torch.finfo(gram.dtype).eps)
