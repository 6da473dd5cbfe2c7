"""Rotations as a manifold: K x b blocks of SO(n), moved by the exponential map.

``base`` holds the rotations R. An optimizer moves ``lie``, a skew-symmetric matrix that is zero before
every step, along the gradient at R; :func:`fold` then sets ``R <- R exp(lie)`` and ``lie <- 0``. At
zero the derivative of the exponential is the identity, so nobody differentiates through it.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["drift", "exponential_step", "orthogonalize"]

# Truncation error per fold, as a root mean square over the spectrum: below float32's rounding.
_TOLERANCE = 3e-8
# Beyond this size the series would need many terms; the step is halved and squared instead.
_SERIES_RADIUS = 0.5
_MAX_TERMS = 14


def exponential_step(base: Tensor, lie: Tensor) -> Tensor:
    """``base @ exp(lie)`` for skew-symmetric (..., n, n) ``lie``, by as many products as it takes.

    A series in float32 on whole batches: ``torch.matrix_exp`` is an order of magnitude slower on
    large batches on CPU, and its accuracy beyond rounding is not needed here.
    """
    side = lie.shape[-1]
    base, lie = base.reshape(-1, side, side), lie.reshape(-1, side, side)
    size = float(torch.linalg.vector_norm(lie, dim=(-2, -1)).max())
    if size == 0:
        return base
    # a skew matrix has its eigenvalues in pairs: the spectral norm is at most size / sqrt(2)
    squarings = 0
    while size / 2**0.5 / 2**squarings > _SERIES_RADIUS and _estimated_norm(lie) / 2**squarings > (
        _SERIES_RADIUS
    ):
        squarings += 1
    if squarings:
        step = _series(_identity_like(lie), lie / 2**squarings)
        for _ in range(squarings):
            step = torch.bmm(step, step)
        return torch.bmm(base, step)
    return _series(base, lie)


def traced_exponential_step(base: Tensor, lie: Tensor, terms: int = 5) -> Tensor:
    """The same with a fixed number of terms, for compilers: nothing depends on values."""
    side = lie.shape[-1]
    term = result = base.reshape(-1, side, side)
    for order in range(1, terms + 1):
        term = torch.bmm(term, lie.reshape(-1, side, side)) / order
        result = result + term
    return result


def _series(base: Tensor, lie: Tensor) -> Tensor:
    """``base (I + lie + lie^2/2 + ...)`` until the next term is below the tolerance."""
    side = lie.shape[-1]
    previous = float(torch.linalg.vector_norm(lie))
    term = torch.bmm(base, lie)
    result = base + term
    for order in range(2, _MAX_TERMS + 1):
        term = torch.bmm(term, lie).div_(order)
        result += term
        size = float(torch.linalg.vector_norm(term))
        ratio = size / previous if previous else 0.0
        # the largest eigenvalue comes to dominate, so later ratios are a little larger than this one
        if 2 * size * ratio / side**0.5 < _TOLERANCE:
            break
        previous = size
    return result


def _estimated_norm(lie: Tensor) -> float:
    """Spectral norm within some per cent, by powers of the matrix on a fixed vector."""
    vector = torch.cos(torch.arange(lie.shape[-1], device=lie.device, dtype=lie.dtype) ** 2)
    vector = vector.expand(len(lie), -1).unsqueeze(-1)
    growth = 0.0
    for _ in range(6):
        vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=1e-30)
        vector = torch.bmm(lie, vector)
        growth = float(torch.linalg.vector_norm(vector, dim=1).max())
    return 1.3 * growth


def drift(rotations: Tensor) -> Tensor:
    """Estimate of the Frobenius norm of ``R'R - I``, the largest over the batch, from two probes."""
    side = rotations.shape[-1]
    rotations = rotations.reshape(-1, side, side)
    index = torch.arange(side, device=rotations.device, dtype=rotations.dtype)
    # signs without a pattern; their products with an error matrix add up like its Frobenius norm
    probes = torch.stack([torch.cos(index**2 + phase) for phase in (0.5, 2.0)], dim=1).sign()
    probes = torch.where(probes == 0, torch.ones_like(probes), probes)
    moved = rotations.mT @ (rotations @ probes)
    return torch.linalg.vector_norm(moved - probes, dim=(-2, -1)).max() / probes.shape[1] ** 0.5


def orthogonalize(rotations: Tensor) -> Tensor:
    """Nearest rotation of one that is nearly orthogonal, by two Newton-Schulz steps."""
    side = rotations.shape[-1]
    result = rotations.reshape(-1, side, side)
    for _ in range(2):
        gram = torch.bmm(result.mT, result)
        result = torch.baddbmm(result, result, gram, beta=1.5, alpha=-0.5)
    return result.reshape(rotations.shape)


def _identity_like(matrices: Tensor) -> Tensor:
    side = matrices.shape[-1]
    return torch.eye(side, dtype=matrices.dtype, device=matrices.device).expand_as(matrices).clone()
