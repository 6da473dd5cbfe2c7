"""Distance from SO(n), projection onto it, and initial rotations."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mtlkit.rotations.exponential import probe

# Frobenius norm of R'R - I that rounding does not reach, so R was overwritten
_NOT_ROTATIONS = 1e-3
# root mean square of the entries of a row of R'R - I, times the root of their number
_ALLOWED_DRIFT = 2e-6


def drift(rotations: Tensor) -> Tensor:
    """Estimate the (B,) Frobenius norms of ``R'R - I`` for (B, n, n) R, from two probes."""
    probes = torch.cat([probe(rotations, phase) for phase in (0.5, 2.0)], dim=1)
    moved = rotations.mT @ (rotations @ probes)
    norms: Tensor = torch.linalg.vector_norm(moved - probes, dim=(-2, -1))
    return norms / math.sqrt(probes.shape[1])


def orthogonalize(rotations: Tensor, iterations: int = 1) -> Tensor:
    """Return the orthogonal matrices nearest to (B, n, n) nearly orthogonal ones (Newton-Schulz).

    Each iteration squares the distance from the manifold.
    """
    for _ in range(iterations):
        gram = torch.bmm(rotations.mT, rotations)
        rotations = torch.baddbmm(rotations, rotations, gram, beta=1.5, alpha=-0.5)
    return rotations


def correct_drift_(rotations: Tensor) -> None:
    """Correct (B, n, n) rotations that rounding has moved off the manifold; synchronizes."""
    distances = drift(rotations).tolist()
    if max(distances) > _NOT_ROTATIONS:
        rotations.copy_(projected(rotations))
    for index, distance in enumerate(distances):
        if distance > _ALLOWED_DRIFT * rotations.shape[-1] ** 0.5:
            rotations[index] = orthogonalize(rotations[index : index + 1])[0]


def polar(matrix: Tensor) -> Tensor:
    """Return the rotation nearest to an (n, n) matrix: its polar factor, with determinant 1."""
    left: Tensor
    right: Tensor
    left, _, right = torch.linalg.svd(matrix)
    sign = torch.linalg.det(left @ right).sign()
    # the last singular value is the smallest, so flipping its direction changes the matrix least
    left[:, -1] *= sign
    return left @ right


def projected(matrices: Tensor) -> Tensor:
    """Replace those of the (B, n, n) matrices that are far from orthogonal by the nearest rotations."""
    distances = drift(matrices)
    if torch.compiler.is_compiling():  # a singular value of 0.01 reaches 1 in twelve iterations
        rotations: Tensor = torch.cond(
            distances.max() > _NOT_ROTATIONS,
            lambda given: orthogonalize(given, iterations=14),
            lambda given: given.clone(),
            (matrices,),
        )
        return rotations
    pairs = zip(matrices, distances.tolist(), strict=True)
    return torch.stack([polar(m) if _NOT_ROTATIONS < far < math.inf else m for m, far in pairs])


def starting_rotations(count: int, side: int, start: Literal["identity", "random"], seed: int) -> Tensor:
    """Return (count, side, side) identities, or rotations drawn uniformly from SO(side)."""
    if start == "identity":
        return torch.eye(side).repeat(count, 1, 1)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        normal = torch.randn(side, side, dtype=torch.float64, device="cpu", generator=generator)
        rotation, triangle = torch.linalg.qr(normal)
        rotation *= triangle.diagonal().sign()  # otherwise not uniformly distributed
        rotation[:, 0] *= torch.linalg.det(rotation).sign()
        found.append(rotation)
    return torch.stack(found).to(torch.get_default_dtype())
