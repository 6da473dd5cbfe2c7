"""Rotations as a manifold: K x b blocks of SO(n), moved by the exponential map.

``base`` holds the rotations R. An optimizer moves a skew-symmetric matrix A that is zero before every
step, along the gradient at R; the fold then sets ``R <- R exp(A)`` and ``A <- 0``. At zero the
derivative of the exponential is the identity, so nobody differentiates through it.

A skew-symmetric n x n matrix has n (n - 1) / 2 numbers of its own, and no more are kept: with blocks of
h = ceil(n / 2) rows, ``A = [[T, C], [-C', S]]`` is packed into (2, h, h): C, and one matrix with the
part of T above its diagonal above and the part of S below its diagonal below. Optimizers have half the
work, and whatever they do to the numbers, the matrix stays skew.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

__all__ = [
    "drift",
    "fold_",
    "orthogonalize",
    "packed_shape",
    "packed_skew_products",
    "skew_product",
    "traced_exponential_step",
    "unpack",
]

# From this many rows on, thin products are tried: below, a full one takes no longer.
_SKETCHED = 384
# of the Taylor polynomial on the few directions: it is enough for angles of about one
_LARGEST_DEGREE = 10


def packed_shape(side: int) -> tuple[int, int, int]:
    """Shape of a packed skew-symmetric ``side`` x ``side`` matrix."""
    half = (side + 1) // 2
    return (2, half, half)


def unpack(packed: Tensor, side: int, out: Tensor | None = None) -> Tensor:
    """(..., side, side) skew-symmetric matrices of (..., 2, h, h) numbers; ``out`` for an even side."""
    half = packed.shape[-1]
    across, triangles = packed.unbind(-3)
    upper = triangles.triu()
    lower = triangles - upper
    full = packed.new_empty(*packed.shape[:-3], 2 * half, 2 * half) if out is None else out
    full[..., :half, :half] = upper - upper.mT
    full[..., half:, half:] = lower - lower.mT
    full[..., :half, half:] = across
    full[..., half:, :half] = -across.mT
    return full if side == 2 * half else full[..., :side, :side].contiguous()


def packed_skew_products(left: Tensor, right: Tensor) -> list[Tensor]:
    """``P - P'`` with ``P = left_k' right``, packed, for (K, b, N, n) ``left``, (b, N, n) ``right``."""
    if left.shape[-1] % 2:
        left, right = (torch.nn.functional.pad(x, (0, 1)) for x in (left, right))
    half = left.shape[-1] // 2
    right_1, right_2 = right.split(half, dim=-1)
    above = torch.ones(half, half, dtype=left.dtype, device=left.device).triu()
    found = []
    for own in left:
        own_1, own_2 = own.split(half, dim=-1)
        across = torch.bmm(own_1.mT, right_2).baddbmm_(right_1.mT, own_2, alpha=-1)
        first, second = torch.bmm(own_1.mT, right_1), torch.bmm(own_2.mT, right_2)
        # first - first' above the diagonal and second - second' below, with one transposition for both
        triangles = torch.lerp(second, first, above).sub_(torch.lerp(first, second, above).mT)
        triangles.diagonal(dim1=-2, dim2=-1).zero_()
        found.append(torch.stack([across, triangles], dim=-3))
    return found


def skew_product(left: Tensor, right: Tensor) -> Tensor:
    """``P - P'`` with ``P = left' right``, for (..., N, n) ``left`` and ``right``."""
    product = torch.matmul(left.mT, right)
    return product - product.mT


def fold_(base: Tensor, lie: Tensor, scratch: Tensor | None = None, *, thin: bool = True) -> bool:
    r"""``base <- base @ exp(lie)`` in place, for skew-symmetric (b, n, n) ``lie``.

    A Taylor polynomial of degree 1 takes one product (that with ``base``), degree 2 two, degree 4
    three, degree 6 four, and every squaring one more: what is needed is estimated by :func:`_plan`.
    ``torch.matrix_exp`` is an order of magnitude slower on a batch of large matrices on CPU.

    Memory of this size costs time when it is new, so a caller with many matrices may lend ``scratch``;
    then ``lie`` is overwritten, and for large matrices one product is mostly enough (see
    :func:`_exponentiate_`), which is tried if ``thin``.

    Returns:
        False if it was tried in vain, at the price of half a product.
    """
    tried = thin and scratch is not None and lie.shape[-1] >= _SKETCHED
    if tried and _exponentiate_(lie):
        base.add_(torch.bmm(base, lie, out=scratch))
        return True
    degree, squarings = _plan(lie)
    if degree <= 2:
        first = torch.bmm(base, lie, out=scratch)
        if degree == 2:
            base.baddbmm_(first, lie, alpha=0.5)
        base.add_(first)
    else:
        base += torch.bmm(base, _exponential_minus_one(lie, degree, squarings), out=scratch)
    return not tried


def _exponentiate_(lie: Tensor) -> bool:
    r"""``lie <- exp(lie) - 1`` in place, where thin products are enough for that; else False.

    .. math:: e^A - 1 = A + A\, \psi(A)\, A, \qquad
        \psi(x) = \tfrac1{2!} + \tfrac x{3!} + \tfrac{x^2}{4!} + \dots

    An optimizer's step has few large singular values, and the squares of the others vanish in
    rounding. With orthonormal columns Q that span the large ones and :math:`Z = AQ`, the second term
    is :math:`-Z \psi(Q^\top Z) Z^\top`. Q is found by a random sketch and one power iteration, and
    whether it spans enough is seen on a vector v: the tolerance is that of :func:`_plan`.
    """
    sketch = _directions(lie.shape[-1], lie.dtype).expand(len(lie), -1, -1)  # v is the last column
    once = torch.bmm(lie, sketch)
    if _vanishes(torch.bmm(lie, once[..., -1:]) / 2):
        return True
    twice = torch.bmm(lie, once)
    span = torch.linalg.householder_product(*torch.geqrf(twice[..., :-1]))
    image, moved = torch.bmm(lie, torch.cat([span, twice[..., -1:]], dim=-1)).tensor_split([-1], dim=-1)
    degree, moved = 3, moved / 6  # A^3 v / 3!
    expected = torch.add(moved, twice[..., -1:], alpha=1 / 2)
    while not _vanishes(moved):
        if degree == _LARGEST_DEGREE:
            return False
        degree += 1
        moved = torch.bmm(lie, moved) / degree
        expected += moved
    inner = torch.bmm(span.mT, image)
    inner = inner - inner.mT  # twice the skew part
    identity = torch.eye(inner.shape[-1], dtype=lie.dtype).expand_as(inner)
    series = identity
    for divisor in range(degree, 2, -1):
        series = torch.baddbmm(identity, inner, series, alpha=1 / (2 * divisor))
    left = torch.bmm(image, series).div_(-2)
    if not _vanishes(torch.baddbmm(expected, left, torch.bmm(image.mT, sketch[..., -1:]), beta=-1)):
        return False
    lie.baddbmm_(left, image.mT)
    return True


@lru_cache(maxsize=4)
def _directions(side: int, dtype: torch.dtype) -> Tensor:
    """(n, n / 16) numbers, the same ones always: random columns, and at last that of :func:`_probe`."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(side, side // 16 - 1, dtype=dtype, generator=generator)
    return torch.cat([random, _probe(random.T)], dim=1)


def _vanishes(moved: Tensor) -> bool:
    """Whether (b, n, 1) images of :func:`_probe` say that the matrices are zero up to rounding."""
    size = float(torch.linalg.vector_norm(moved, dim=(-2, -1)).max())
    return size < torch.finfo(moved.dtype).eps * math.sqrt(moved.shape[-2])


def traced_exponential_step(base: Tensor, lie: Tensor) -> Tensor:
    """The same with a fixed number of products, for compilers: nothing depends on values."""
    side = lie.shape[-1]
    shape, base, lie = base.shape, base.reshape(-1, side, side), lie.reshape(-1, side, side)
    move = _exponential_minus_one(lie, degree=6, squarings=2)
    return orthogonalize(torch.baddbmm(base, base, move), iterations=1).reshape(shape)


def _plan(lie: Tensor) -> tuple[int, int]:
    r"""Degree and number of squarings that the exponentials of (b, n, n) ``lie`` take.

    The first term that a polynomial of degree p leaves out is :math:`A^{p+1} / (p+1)!`; its Frobenius
    norm is estimated by multiplying a vector with A. As a root mean square over the spectrum it must
    stay below the rounding of the dtype. Degree 2 with no squaring is what usual steps of an optimizer
    take, degree 1 what they take when the rate has decayed.
    """
    side = lie.shape[-1]
    tolerance = torch.finfo(lie.dtype).eps
    moved = _probe(lie).expand(len(lie), -1, -1)
    power = 0
    for degree in (1, 2, 4, 6):
        while power <= degree:
            moved, power = torch.bmm(lie, moved), power + 1
        norm = float(torch.linalg.vector_norm(moved, dim=(-2, -1)).max())
        error = norm / math.factorial(degree + 1) / math.sqrt(side)
        if error < tolerance:
            return degree, 0
    if not math.isfinite(error):  # the seventh power left the dtype's range
        degree, squarings = _plan(lie / 1024)
        return degree, squarings + 10
    # halving A takes a factor of 2^7 from this error, and squaring back doubles it
    return 6, math.ceil(math.log2(error / tolerance) / 6)


def _probe(matrices: Tensor, phase: float = 0.5) -> Tensor:
    """(n, 1) numbers without a pattern: the norm of A times them is about A's Frobenius norm."""
    index = torch.arange(matrices.shape[-1], device=matrices.device, dtype=matrices.dtype)
    return torch.cos(index.square_() + phase).mul_(2**0.5).unsqueeze(1)


def _exponential_minus_one(lie: Tensor, degree: int, squarings: int) -> Tensor:
    """``exp(lie) - 1`` to degree 4 or 6, by Paterson and Stockmeyer's scheme.

    The identity is left out throughout, because adding it would round away a small move's digits.
    """
    if squarings:
        lie = lie / 2**squarings
    square = torch.bmm(lie, lie)
    if degree == 4:
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


def drift(rotations: Tensor) -> Tensor:
    """Estimate of the Frobenius norm of ``R'R - I``, the largest over the batch, from two probes."""
    side = rotations.shape[-1]
    rotations = rotations.reshape(-1, side, side)
    probes = torch.cat([_probe(rotations, phase) for phase in (0.5, 2.0)], dim=1)
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
