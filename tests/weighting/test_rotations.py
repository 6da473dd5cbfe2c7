"""The manifold: the fold, its accuracy, drift and orthogonalisation."""

import pytest
import torch
from torch import Tensor

from mtlkit.weighting.rotations import (
    _plan,
    drift,
    fold_,
    orthogonalize,
    packed_shape,
    packed_skew_products,
    skew_product,
    traced_exponential_step,
    unpack,
)


def random_skew(side: int, norm: float, seed: int = 0, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(count, side, side, generator=generator, dtype=torch.float64)
    matrices = matrices - matrices.mT
    return matrices * (norm / torch.linalg.matrix_norm(matrices, 2))[:, None, None]


def random_rotations(side: int, seed: int = 1, count: int = 2) -> Tensor:
    return torch.linalg.matrix_exp(random_skew(side, 3.0, seed, count))


def orthogonality_error(rotations: Tensor) -> float:
    rotations = rotations.double()
    return float((rotations.mT @ rotations - torch.eye(rotations.shape[-1])).abs().max())


@pytest.mark.parametrize("norm", [1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("side", [2, 3, 16, 64, 256])
def test_fold_is_the_exponential_map(side: int, norm: float) -> None:
    base, lie = random_rotations(side), random_skew(side, norm)
    expected = base @ torch.linalg.matrix_exp(lie)
    single, double = base.float(), base.clone()
    fold_(single, lie.float())
    fold_(double, lie)
    assert (single - expected).abs().max() < 1e-6 * max(norm, 1)
    assert (double - expected).abs().max() < 1e-13 * max(norm, 1)
    assert orthogonality_error(single) < 2e-6 * max(norm, 1)


@pytest.mark.parametrize("rank", [1, 5])
def test_fold_is_exact_for_a_coherent_move_whose_norm_is_far_above_its_mean(rank: int) -> None:
    generator = torch.Generator().manual_seed(3)
    left = torch.linalg.qr(torch.randn(1, 128, 2 * rank, generator=generator, dtype=torch.float64))[0]
    lie = left[..., :rank] @ left[..., rank:].mT
    lie = 0.7 * (lie - lie.mT)
    base = random_rotations(128, count=1)
    folded = base.float()
    fold_(folded, lie.float())
    assert (folded - base @ torch.linalg.matrix_exp(lie)).abs().max() < 1e-6


def test_small_moves_take_one_or_two_products_and_larger_ones_more() -> None:
    lie = random_skew(64, 1.0).float()
    assert _plan(0 * lie) == _plan(1e-4 * lie) == (1, 0)
    assert _plan(1e-3 * lie) == (2, 0)
    degrees = [_plan(10.0**power * lie) for power in range(-4, 4)]
    assert degrees == sorted(degrees, key=lambda plan: (plan[1], plan[0]))
    assert degrees[-1][1] > 0
    assert _plan(1e6 * lie)[1] > degrees[-1][1]  # its seventh power is beyond float32


@pytest.mark.parametrize("norm", [1e-4, 0.1, 1.0])
def test_traced_step_is_the_exponential_map(norm: float) -> None:
    base, lie = random_rotations(16), random_skew(16, norm)
    stepped = traced_exponential_step(base.float(), lie.float())
    assert (stepped - base @ torch.linalg.matrix_exp(lie)).abs().max() < 2e-6


@pytest.mark.parametrize("side", [1, 2, 3, 8, 9])
def test_skew_product_is_the_difference_of_product_and_transpose(side: int) -> None:
    left, right = torch.randn(3, 7, side), torch.randn(3, 7, side)
    product = left.mT @ right
    expected = product - product.mT
    assert torch.allclose(skew_product(left, right), expected)
    (packed,) = packed_skew_products(left[None], right)
    assert packed.shape == (3, *packed_shape(side))
    assert torch.allclose(unpack(packed, side), expected, atol=1e-6)


@pytest.mark.parametrize("side", [1, 2, 3, 8, 9])
def test_any_packed_numbers_are_a_skew_matrix_and_each_is_used_once(side: int) -> None:
    packed = torch.rand(2, *packed_shape(side)) + 1
    full = unpack(packed, side)
    assert torch.equal(full, -full.mT)
    above = full[0][torch.ones(side, side).triu(1) == 1].abs()
    assert len(above.unique()) == side * (side - 1) // 2
    assert torch.isin(above, packed[0]).all()


@pytest.mark.parametrize("side", [8, 64])
@pytest.mark.parametrize("size", [1e-5, 1e-3])
def test_drift_estimates_the_distance_from_the_manifold(side: int, size: float) -> None:
    rotations = random_rotations(side)
    assert float(drift(rotations)) < 1e-12
    noise = torch.randn(rotations.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = rotations + size * noise
    exact = torch.linalg.matrix_norm(moved.mT @ moved - torch.eye(side)).max()
    assert 0.5 * exact < drift(moved) < 2 * exact


def test_orthogonalize_finds_the_nearest_rotation() -> None:
    rotations = random_rotations(16)
    noise = torch.randn(rotations.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = rotations + 1e-4 * noise
    left, _, right = torch.linalg.svd(moved)
    assert (orthogonalize(moved) - left @ right).abs().max() < 1e-12
