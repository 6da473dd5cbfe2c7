"""The manifold: the fold, its accuracy, drift and orthogonalisation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtlkit.weighting.rotations import (
    _exponentiate_,
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


def dominated_skew(angles: list[float], bulk: float, side: int = 384, seed: int = 4) -> Tensor:
    """A few planes that turn by the given angles, and noise of this norm in all others."""
    generator = torch.Generator().manual_seed(seed)
    planes = torch.randn(1, side, 2 * len(angles), generator=generator, dtype=torch.float64)
    first, second = torch.linalg.qr(planes)[0].split(len(angles), dim=-1)
    few = (first * torch.tensor(angles)) @ second.mT
    return few - few.mT + random_skew(side, bulk, seed, count=1)


@given(
    angles=st.lists(st.floats(1e-4, 0.5), min_size=1, max_size=6),
    bulk=st.sampled_from([0.0, 1e-6, 1e-4, 3e-4]),
)
@settings(max_examples=20, deadline=None)
def test_a_move_with_few_large_directions_takes_one_full_product(angles, bulk) -> None:
    lie = dominated_skew(angles, bulk)
    move = lie.float()
    assert _exponentiate_(move)
    expected = torch.linalg.matrix_exp(lie) - torch.eye(lie.shape[-1])
    error = torch.linalg.matrix_norm(move - expected) / lie.shape[-1] ** 0.5
    assert float(error) < 3 * torch.finfo(torch.float32).eps
    base = random_rotations(lie.shape[-1], count=1)
    folded = base.float()
    fold_(folded, lie.float(), scratch=torch.empty_like(folded))
    assert (folded - base @ torch.linalg.matrix_exp(lie)).abs().max() < 1e-6
    assert orthogonality_error(folded) < 2e-6


@pytest.mark.parametrize(("norm", "scale"), [(0.05, 1.0), (1.0, 1.0), (1.0, 30.0)])
def test_a_move_in_all_directions_is_left_to_full_products(norm: float, scale: float) -> None:
    lie = scale * random_skew(384, norm, count=1)
    move = lie.float()
    before = move.clone()
    assert not _exponentiate_(move)
    assert torch.equal(move, before)
    base = random_rotations(384, count=1)
    folded = base.float()
    fold_(folded, move, scratch=torch.empty_like(folded))
    assert (folded - base @ torch.linalg.matrix_exp(lie)).abs().max() < 1e-6 * max(scale, 1)


def test_a_move_below_rounding_is_its_own_exponential() -> None:
    lie = random_skew(384, 1e-4, count=1).float()
    move = lie.clone()
    assert _exponentiate_(move)
    assert torch.equal(move, lie)


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
