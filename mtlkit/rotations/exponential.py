"""The exponential map of SO(n): packed skew-symmetric matrices, and a step along one.

A skew-symmetric n x n matrix has n (n - 1) / 2 free entries. With h = ceil(n / 2) and ``A = [[T, C],
[-C', S]]`` it is packed into (2 h, h): first C, then one matrix with the part of T above its diagonal
above and the part of S below its diagonal below. This halves the optimizer's work, and the matrix stays
skew-symmetric whatever the optimizer does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

CAPACITY = {2: 0.1, 4: 0.3, 8: 0.5}
"""Largest angle of one step, in radians, by the degree of the polynomial.

Degrees 2, 4 and 8 take 1, 2 and 3 products. At a quarter of the capacity the error of a step is at most
the rounding of float32, at the capacity of degree 2 it is 2.5e-5.
"""

_POWER_ITERATIONS = 2
_ROOT = math.sqrt(177)
_X3 = 2 / 3
_X1 = _X3 * (1 + _ROOT) / 88
_X2 = _X3 * (1 + _ROOT) / 352
_X4 = (29 * _ROOT - 271) / (315 * _X3)
_X5 = 11 * (_ROOT - 1) / (1260 * _X3)
_X6 = 11 * (_ROOT - 9) / (5040 * _X3)
_X7 = (89 - _ROOT) / (5040 * _X3**2)
_Y2 = (857 - 58 * _ROOT) / 630


def packed_shape(side: int) -> tuple[int, int]:
    """Return the shape of a packed skew-symmetric ``side`` x ``side`` matrix."""
    half = (side + 1) // 2
    return (2 * half, half)


def unpack(packed: Tensor, side: int) -> Tensor:
    """Return (..., side, side) skew-symmetric matrices of (..., 2 h, h) packed entries."""
    half = packed.shape[-1]
    across, triangles = packed.chunk(2, dim=-2)
    upper = triangles.triu()
    lower = triangles - upper
    full = packed.new_empty(*packed.shape[:-2], 2 * half, 2 * half)
    full[..., :half, :half] = upper - upper.mT
    full[..., half:, half:] = lower - lower.mT
    full[..., :half, half:] = across
    full[..., half:, :half] = -across.mT
    return full if side == 2 * half else full[..., :side, :side].contiguous()


def packed_skew_products(left: Tensor, right: Tensor) -> list[Tensor]:
    """Pack ``P - P'`` with ``P = left_k' right``, for (K, b, N, n) ``left`` and (b, N, n) ``right``."""
    if left.shape[-1] % 2:
        left, right = pad(left, (0, 1)), pad(right, (0, 1))
    half = left.shape[-1] // 2
    right_1, right_2 = right.chunk(2, dim=-1)
    above = torch.ones(half, half, dtype=left.dtype, device=left.device).triu()
    found = []
    for own in left:  # one task after the other: its products stay in the cache
        own_1, own_2 = own.chunk(2, dim=-1)
        across = torch.bmm(own_1.mT, right_2).baddbmm_(right_1.mT, own_2, alpha=-1)
        first, second = torch.bmm(own_1.mT, right_1), torch.bmm(own_2.mT, right_2)
        # first - first' above the diagonal and second - second' below, with one transposition for both
        triangles = torch.lerp(second, first, above).sub_(torch.lerp(first, second, above).mT)
        triangles.diagonal(dim1=-2, dim2=-1).zero_()
        found.append(torch.cat([across, triangles], dim=-2))
    return found


def skew_product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``P - P'`` with ``P = left' right``, for (..., N, n) ``left`` and ``right``."""
    product = torch.matmul(left.mT, right)
    return product - product.mT


def exponential_minus_one(move: Tensor, degree: int = 8, squarings: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return ``exp(f A) - 1`` of skew-symmetric (B, n, n) A, and the (B, 1, 1) factors f.

    .. math:: f = \min(1,\ 2^s c / \|A\|_2)

    with the capacity c of the Taylor polynomial of the ``degree``; each of ``squarings`` s is one more
    product. The factors are computed on the device, without a synchronization. The identity is never
    added, because that would round away the digits of a small move.
    """
    if squarings:
        move = move / 2**squarings
    square = skew_square(move)
    factor = CAPACITY[degree] / _spectral_norms(square).clamp_min(CAPACITY[degree])
    if degree == 2:  # f A + (f A)^2 / 2
        return torch.addcmul(move, square, factor / 2).mul_(factor), factor
    move, square = move * factor, square * factor.square()
    if degree == 4:
        inner = torch.add(move / 6, square, alpha=1 / 24)
        result = move.add_(square, alpha=1 / 2).baddbmm_(square, inner)
    else:
        result = _degree_eight(move, square)
    for _ in range(squarings):
        result = torch.baddbmm(result, result, result, beta=2)
    return result, factor


def skew_square(move: Tensor) -> Tensor:
    """Return ``A A`` of skew-symmetric (B, n, n) A by 3/4 of a product, because it is symmetric."""
    half = move.shape[-1] // 2
    above = torch.bmm(move[:, :half], move)  # (B, h, n)
    across = above[..., half:]
    below = torch.cat([across.mT, torch.bmm(move[:, half:], move[..., half:])], dim=-1)
    return torch.cat([above, below], dim=-2)


def _degree_eight(move: Tensor, square: Tensor) -> Tensor:
    """Return the polynomial without its 1, by two more products.

    Bader, Blanes and Casas, Computing the matrix exponential with an optimized Taylor polynomial
    approximation, 2019. Their A4 is x2 * fourth and their A8 the last product: common factors of a sum
    are taken out, so that each sum is one pass over memory per term.
    """
    fourth = torch.bmm(square, torch.add(square, move, alpha=_X1 / _X2))
    inner = torch.add(fourth, move, alpha=_X5 / _X7 / _X2).add_(square, alpha=_X6 / _X7 / _X2)
    inner.diagonal(dim1=-2, dim2=-1).add_(_X4 / _X7 / _X2)
    left = fourth.add_(square, alpha=_X3 / _X2)
    return move.add_(square, alpha=_Y2).baddbmm_(left, inner, alpha=_X2 * _X7 * _X2)


def degree_for(move: Tensor, most: int = 8) -> int:
    """Return the polynomial degree for updates of up to four times (B, n, n) ``move``; synchronizes.

    Degrees above 8, up to ``most``, are 8 times a power of two: degree 8 of a part of the move, squared
    as often as it was halved.
    """
    largest = 4 * float(_spectral_norms(move, move).max())
    degree = next((degree for degree, capacity in CAPACITY.items() if capacity >= largest), 8)
    while 8 <= degree < most and CAPACITY[8] * degree / 8 < largest:
        degree *= 2
    return degree


def _spectral_norms(*factors: Tensor) -> Tensor:
    """Estimate (B, 1, 1) spectral norms of A, where the (B, n, n) ``factors`` have the product A A.

    The power iteration never overestimates. Two iterations find more than half of the norm even if one
    plane turns much faster than hundreds of others.
    """
    vector = probe(factors[0]).expand(len(factors[0]), -1, -1)  # (B, n, 1)
    tiny = torch.finfo(vector.dtype).tiny
    for _ in range(_POWER_ITERATIONS):
        length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        vector = vector / length.clamp_min(tiny)
        for factor in factors:
            vector = torch.bmm(factor, vector)
    norms: Tensor = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return norms.sqrt()


def probe(matrices: Tensor, phase: float = 0.5) -> Tensor:
    """Return a fixed pseudo-random (n, 1) vector v: ``|A v|`` estimates the Frobenius norm of A."""
    index = torch.arange(matrices.shape[-1], device=matrices.device, dtype=matrices.dtype)
    return torch.cos(index.square() + phase).mul(2**0.5).unsqueeze(1)
