"""Small problems on K x K Gram matrices, solved to machine precision.

Everything here is relative: no absolute threshold decides a branch, so that a problem and its
multiple by 1e-12 or 1e12 have the same solution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "cosine_matrix",
    "min_norm_point",
    "safe_divide",
    "solve",
    "symmetric_pseudo_inverse",
]

Matrix = np.ndarray


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient, and zero where the denominator is zero."""
    zero = denominator == 0
    quotient = numerator / torch.where(zero, torch.ones_like(denominator), denominator)
    return torch.where(zero, torch.zeros_like(quotient), quotient)


def cosine_matrix(gram: Tensor) -> Tensor:
    """(K, K) cosines of the task gradients; rows and columns of zero gradients are zero."""
    norms = gram.diagonal().sqrt()
    return safe_divide(safe_divide(gram, norms[:, None]), norms[None, :])


def symmetric_pseudo_inverse(matrix: Tensor) -> Tensor:
    """Moore-Penrose inverse of a positive semidefinite matrix, by its eigenvalues."""
    finite = torch.isfinite(matrix).all()
    values, vectors = torch.linalg.eigh(torch.where(finite, matrix, torch.zeros_like(matrix)))
    cutoff = values[-1] * len(matrix) * torch.finfo(matrix.dtype).eps * 8
    inverse = torch.where(values > cutoff, 1 / values, torch.zeros_like(values))
    return torch.where(finite, (vectors * inverse) @ vectors.T, torch.nan)


def solve(solver: Callable[[Matrix], Matrix], gram: Tensor) -> Tensor:
    """Run a NumPy solver on a Gram matrix, in float64; NaN weights where it is not finite."""
    matrix = gram.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(matrix).all():
        return torch.full_like(gram[0], torch.nan)
    return torch.from_numpy(solver(matrix)).to(gram)


def min_norm_point(gram: Matrix) -> Matrix:
    """Barycentric weights of the shortest vector in the convex hull.

    Lawson and Hanson's non-negative least squares of ``[A; 1] x = [0; 1]`` with ``A'A = gram``,
    normalised. A is the root of the cosine matrix times the norms, which keeps the relative
    accuracy of short gradients next to long ones.
    """
    from scipy.optimize import nnls

    norms = np.sqrt(gram.diagonal())
    if not norms.all():
        return (norms == 0) / np.count_nonzero(norms == 0)
    cosines = gram / norms[:, None] / norms[None, :]
    values, vectors = np.linalg.eigh(cosines)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    system = np.vstack([root * (norms / norms.min()), np.ones(len(gram))])
    target = np.zeros(len(system))
    target[-1] = 1
    solution, _ = nnls(system, target)
    return solution / solution.sum()
