"""Formulas on Gram matrices, the (K, K) inner products of K task gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with zero where the denominator is zero.

    >>> safe_divide(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.where(denominator.bool(), numerator / denominator, 0.0)


def norms_of(gram: Tensor) -> Tensor:
    """(K,) norms of the task gradients in float64.

    >>> norms_of(torch.tensor([[4.0, -2.0], [-2.0, 1.0]]))
    tensor([2., 1.], dtype=torch.float64)
    """
    return gram.diagonal().double().sqrt()


def cosine_matrix(gram: Tensor) -> Tensor:
    """(K, K) cosines of the task gradients in float64; a zero gradient has cosine zero with all.

    >>> cosine_matrix(torch.tensor([[4.0, -2.0], [-2.0, 4.0]]))
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    norms = norms_of(gram)
    return safe_divide(gram, torch.outer(norms, norms))


def eps_of(gram: Tensor) -> float:
    """Relative rounding error of the Gram matrix: that of the type it was computed in.

    >>> eps_of(torch.eye(2, dtype=torch.float64)) == 2.0**-52
    True
    """
    return float(torch.finfo(gram.dtype).eps)
