"""Rotations as a manifold: K x b blocks of SO(n), moved by the exponential map.

``base`` holds the rotations R. An optimizer moves ``lie``, a skew-symmetric matrix that is zero before
every step, along the gradient at R; the fold then sets ``R <- R exp(lie)`` and ``lie <- 0``. At zero
the derivative of the exponential is the identity, so nobody differentiates through it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "drift",
    "fold_",
    "is_skew",
    "orthogonalize",
    "skew",
    "skew_product",
    "traced_exponential_step",
]

# Columns that are compared with rows to see that a matrix is skew-symmetric.
_COMPARED = 8
# Strips of a symmetric product: half of it is computed, in this many pieces, and mirrored.
_STRIPS = 4


def fold_(base: Tensor, lie: Tensor) -> None:
    r"""``base <- base @ exp(lie)`` in place, for skew-symmetric (b, n, n) ``lie``.

    With :math:`B = A^2`, a Taylor polynomial of degree 2 takes two products (that with ``base``
    included), degree 4 takes three, degree 6 four, and every squaring one more. Which one is decided
    by :math:`\|B\|_F`: eigenvalues of a skew matrix come in pairs, so the largest is at most
    :math:`\sqrt{\|B\|_F / \sqrt 2}`. The polynomial's error, as a root mean square over the spectrum,
    stays below the rounding of the dtype. ``torch.matrix_exp`` is an order of magnitude slower on a
    batch of large matrices on CPU.
    """
    square = _square(lie)
    size = float(torch.linalg.vector_norm(square, dim=(-2, -1)).max())
    degree, squarings = _plan(size, lie.shape[-1], torch.finfo(lie.dtype).eps)
    base += torch.bmm(base, _exponential_minus_one(lie, square, degree, squarings))


def traced_exponential_step(base: Tensor, lie: Tensor) -> Tensor:
    """The same with a fixed number of products, for compilers: nothing depends on values."""
    side = lie.shape[-1]
    shape, base, lie = base.shape, base.reshape(-1, side, side), lie.reshape(-1, side, side)
    move = _exponential_minus_one(lie, torch.bmm(lie, lie), degree=6, squarings=2)
    return orthogonalize(torch.baddbmm(base, base, move), iterations=1).reshape(shape)


def skew_product(left: Tensor, right: Tensor) -> Tensor:
    """``P - P'`` with ``P = left' right``, for (..., N, n) ``left`` and ``right``."""
    product = torch.matmul(left.mT, right)
    return product - product.mT


def _square(lie: Tensor) -> Tensor:
    """``lie @ lie``, which is symmetric: on a CPU little more than half of it is computed."""
    side = lie.shape[-1]
    if lie.device.type != "cpu" or side % _STRIPS or side < 256 or torch.compiler.is_compiling():
        return torch.bmm(lie, lie)
    square = torch.empty_like(lie)
    width = side // _STRIPS
    for matrix, result in zip(lie, square, strict=True):
        for start in range(0, side, width):
            strip, after = slice(start, start + width), slice(start + width, side)
            torch.mm(matrix[strip], matrix[:, start:], out=result[strip, start:])
            result[after, strip] = result[strip, after].T
    return square


def _plan(size: float, side: int, tolerance: float) -> tuple[int, int]:
    """Degree and number of squarings for a matrix whose square has the Frobenius norm ``size``."""
    radius = math.sqrt(size / math.sqrt(2))  # bounds the spectral norm
    squarings = 0
    while True:
        for degree in (2, 4, 6):
            # the first term left out: ||A^(p+1)||_F <= radius^(p-1) ||A^2||_F
            error = radius ** (degree - 1) * size / math.factorial(degree + 1) / math.sqrt(side)
            if error < tolerance:
                return degree, squarings
        squarings, radius, size = squarings + 1, radius / 2, size / 4


def _exponential_minus_one(lie: Tensor, square: Tensor, degree: int, squarings: int) -> Tensor:
    """``exp(lie) - 1``, by Paterson and Stockmeyer's scheme; ``square`` is overwritten.

    The identity is left out throughout, because adding it would round away a small move's digits.
    """
    if squarings:
        lie = lie / 2**squarings
        square = square.div_(4**squarings)
    if degree == 2:
        move = square.div_(2).add_(lie)
    elif degree == 4:
        inner = torch.add(lie / 6, square, alpha=1 / 24)
        inner.diagonal(dim1=-2, dim2=-1).add_(1 / 2)
        move = torch.baddbmm(lie, square, inner)
    else:
        cube = torch.bmm(lie, square)
        inner = torch.add(lie / 24, square, alpha=1 / 120).add_(cube, alpha=1 / 720)
        inner.diagonal(dim1=-2, dim2=-1).add_(1 / 6)
        move = square.div_(2).add_(lie).baddbmm_(cube, inner)
    for _ in range(squarings):
        move = torch.baddbmm(move, move, move, beta=2)
    return move


def is_skew(lie: Tensor) -> bool:
    """Whether the first columns are the negative first rows, to the last bit.

    Optimizers that treat every number alike keep a skew matrix exactly skew; those that do not are
    found out here at the cost of some columns.
    """
    return bool(torch.equal(lie[..., :_COMPARED], -lie[..., :_COMPARED, :].mT))


def skew(lie: Tensor) -> Tensor:
    """Nearest skew-symmetric matrix."""
    return (lie - lie.mT) / 2


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


def orthogonalize(rotations: Tensor, iterations: int = 2) -> Tensor:
    """Nearest rotation of one that is nearly orthogonal, by Newton-Schulz steps."""
    side = rotations.shape[-1]
    result = rotations.reshape(-1, side, side)
    for _ in range(iterations):
        gram = torch.bmm(result.mT, result)
        result = torch.baddbmm(result, result, gram, beta=1.5, alpha=-0.5)
    return result.reshape(rotations.shape)
