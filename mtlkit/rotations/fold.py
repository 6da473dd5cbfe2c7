"""The fold: applies an optimizer's update of packed skew-symmetric matrices to the rotations.

B rotations ``base`` are (B, n, n); ``lie``, the optimizer's parameters, and ``applied``, the part of
them that is in ``base`` already, are packed, (B, 2 h, h). Nothing here waits for the device, except
:func:`folded` where it is not compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtlkit.rotations.exponential import exponential_minus_one, unpack
from mtlkit.rotations.manifold import orthogonalize, projected

# Matrices are folded in chunks of this many numbers, which fit into a CPU's cache: at K=10, m=512 that
# is one after the other and takes three quarters of the time of one batch.
_CHUNK = 2**18
# a float64 step of 0.5 is then exact to 1e-16
_SQUARINGS = {torch.float64: 3}
# 2^6 times the capacity of one step: all of any move that occurs
_SQUARINGS_IN_EVALUATION = 6


def fold_(base: Tensor, applied: Tensor, lie: Tensor, degree: int = 8) -> None:
    """``base <- base exp(f A)``, ``applied <- applied + f A`` in place, with A = lie - applied.

    The factors f are 1 for moves up to the capacity of the ``degree``, and 0 for moves that are not
    finite.
    """
    chunk = max(1, _CHUNK // base.shape[-1] ** 2)
    squarings = _SQUARINGS.get(base.dtype, 0)
    pieces = (torch.split(tensor, chunk) for tensor in (base, applied, lie))
    for rotations, done, wanted in zip(*pieces, strict=True):
        step, factor = _step(rotations.shape[-1], done, wanted, degree, squarings)
        rotations += torch.bmm(rotations, step)
        # exactly what was wanted where the factor is 1; it is 0 where that is not finite
        done.lerp_(torch.nan_to_num(wanted, 0.0, 0.0, 0.0), factor)


def folded(base: Tensor, applied: Tensor, lie: Tensor) -> Tensor:
    """``base exp(lie - applied)`` on the manifold, even if ``base`` was averaged or rounded."""
    base = projected(base)
    step, _ = _step(base.shape[-1], applied, lie, 8, _SQUARINGS_IN_EVALUATION)
    return orthogonalize(torch.baddbmm(base, base, step))


def _step(side: int, applied: Tensor, lie: Tensor, degree: int, squarings: int) -> tuple[Tensor, Tensor]:
    """``exp(f A) - 1`` and (B, 1, 1) f."""
    move = lie - applied
    largest = move.abs().amax(dim=(-2, -1), keepdim=True)
    # the powers of such entries stay within the dtype's range, and no smaller move is cut
    limit = 2.0**squarings
    scale = torch.where(largest.isfinite(), limit / largest.clamp_min(limit), 0.0)
    zeroed = torch.nan_to_num(move, 0.0, 0.0, 0.0)  # many times faster than where
    move = unpack(zeroed.mul_(scale), side)
    step, factor = exponential_minus_one(move, degree, squarings)
    return step, factor * scale
