"""What holds for all rotations."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["assert_rotations", "orthogonality_error"]


def orthogonality_error(rotations: Tensor) -> float:
    rotations = rotations.double()
    return float((rotations.mT @ rotations - torch.eye(rotations.shape[-1])).abs().max())


def assert_rotations(rotations: Tensor, tolerance: float = 1e-5) -> None:
    assert orthogonality_error(rotations) < tolerance
    assert (torch.linalg.det(rotations.double()) - 1).abs().max() < 1e-3
