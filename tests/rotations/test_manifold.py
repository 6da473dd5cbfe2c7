"""Distance from SO(n), the way back, and where rotations start."""

import pytest
import torch
from torch import Tensor

from mtlkit.rotations.manifold import (
    correct_drift_,
    drift,
    orthogonalize,
    polar,
    projected,
    starting_rotations,
)


def noisy(side: int, size: float, count: int = 2) -> tuple[Tensor, Tensor]:
    """Rotations in float64, and these with noise."""
    generator = torch.Generator().manual_seed(side)
    rotations = starting_rotations(count, side, "random", seed=1).double()
    rotations = orthogonalize(rotations)
    noise = torch.randn(rotations.shape, generator=generator, dtype=torch.float64)
    return rotations, rotations + size * noise


def nearest(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


@pytest.mark.parametrize("side", [8, 64])
@pytest.mark.parametrize("size", [1e-5, 1e-3])
def test_drift_estimates_the_distance_from_the_manifold(side: int, size: float) -> None:
    rotations, moved = noisy(side, size)
    assert drift(rotations).max() < 1e-11
    exact = torch.linalg.matrix_norm(moved.mT @ moved - torch.eye(side))
    assert (0.4 * exact < drift(moved)).all()
    assert (drift(moved) < 2 * exact).all()


def test_orthogonalize_finds_the_nearest_rotation() -> None:
    _, moved = noisy(16, 1e-4)
    expected = torch.stack([nearest(m) for m in moved])
    assert (orthogonalize(moved, iterations=2) - expected).abs().max() < 1e-12


def test_polar_is_the_nearest_rotation_also_where_the_nearest_orthogonal_matrix_is_none() -> None:
    near = torch.diag(torch.tensor([1.2, 0.9, 0.1]))
    mirrored = torch.diag(torch.tensor([1.2, 0.9, -0.1]))
    assert torch.allclose(polar(near), torch.eye(3))
    assert torch.allclose(polar(mirrored), torch.eye(3))
    assert torch.linalg.det(polar(-torch.eye(3))).item() == pytest.approx(1)


def test_only_what_is_far_from_the_manifold_is_projected() -> None:
    rotations, moved = noisy(16, 0.05)
    mixed = torch.stack([rotations[0], moved[1]])
    found = projected(mixed)
    assert torch.equal(found[0], rotations[0])
    assert (found[1] - nearest(moved[1])).abs().max() < 1e-12
    broken = torch.full((1, 3, 3), torch.nan)
    assert projected(broken).isnan().all()


@pytest.mark.parametrize("size", [1e-5, 0.05])
def test_drift_is_corrected_where_there_is_any(size: float) -> None:
    rotations, moved = noisy(16, size)
    mixed = torch.stack([rotations[0], moved[1]])
    correct_drift_(mixed)
    assert torch.equal(mixed[0], rotations[0])
    assert (mixed[1] - nearest(moved[1])).abs().max() < 1e-8


def test_a_random_start_is_uniform_on_the_rotations() -> None:
    """For Haar measure: entries have mean 0 and variance 1 / n, traces mean 0 and variance 1."""
    count, side = 4000, 4
    rotations = starting_rotations(count, side, "random", seed=0).double()
    assert (rotations.mT @ rotations - torch.eye(side)).abs().max() < 1e-6
    assert (torch.linalg.det(rotations) - 1).abs().max() < 1e-5
    assert rotations.mean(0).abs().max() < 5 * (1 / side / count) ** 0.5
    assert (rotations.square().mean(0) - 1 / side).abs().max() < 0.03
    traces = rotations.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(traces.mean()) < 5 / count**0.5
    assert traces.var() == pytest.approx(1, abs=0.12)
    # the first column of a QR factor without its signs has a mean that is not zero
    assert abs((rotations[:, 0, 0] > 0).double().mean() - 0.5) < 0.04


def test_a_start_depends_on_its_seed_alone() -> None:
    torch.manual_seed(3)
    one = starting_rotations(2, 5, "random", seed=7)
    before = torch.get_rng_state()
    assert torch.equal(one, starting_rotations(2, 5, "random", seed=7))
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.allclose(one, starting_rotations(2, 5, "random", seed=8))
    assert not torch.allclose(one[0], one[1])
    assert torch.equal(starting_rotations(2, 5, "identity", seed=7), torch.eye(5).repeat(2, 1, 1))
    assert torch.allclose(starting_rotations(3, 1, "random", seed=0), torch.ones(3, 1, 1))
