"""Packed skew-symmetric matrices and the exponential step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtlkit.rotations.exponential import (
    CAPACITY,
    degree_for,
    exponential_minus_one,
    packed_shape,
    packed_skew_products,
    skew_product,
    unpack,
)

SIDES = [1, 2, 3, 8, 9]
LARGEST = CAPACITY[8]


def random_skew(side: int, norm: float, seed: int = 0, count: int = 2) -> Tensor:
    """(count, side, side) in float64, of this spectral norm."""
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(count, side, side, generator=generator, dtype=torch.float64)
    matrices = matrices - matrices.mT
    norms = torch.linalg.matrix_norm(matrices, 2)[:, None, None]
    return matrices * (norm / norms.clamp_min(1e-300))


def exact(matrices: Tensor) -> Tensor:
    """One exponential after the other, less the identity: a batch of them is very slow on a CPU."""
    return torch.stack([torch.matrix_exp(m) - torch.eye(len(m), dtype=m.dtype) for m in matrices])


@given(side=st.integers(1, 40), norm=st.floats(0, LARGEST), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_step_up_to_the_capacity_is_the_exponential(side: int, norm: float, seed: int) -> None:
    move = random_skew(side, norm, seed)
    single, factor = exponential_minus_one(move.float())
    assert torch.equal(factor, torch.ones(2, 1, 1))
    assert (single - exact(move)).abs().max() <= 3e-7 * norm + 1e-15
    double, factor = exponential_minus_one(move, squarings=3)
    assert torch.equal(factor, torch.ones(2, 1, 1, dtype=torch.float64))
    assert (double - exact(move)).abs().max() <= 4e-15


@pytest.mark.parametrize("norm", [0.1, 0.2, 0.4])
def test_the_polynomial_is_wrong_by_its_ninth_term(norm: float) -> None:
    plane = norm * torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)
    error = exponential_minus_one(plane)[0] - exact(plane)
    assert torch.linalg.matrix_norm(error, 2).item() == pytest.approx(
        norm**9 / math.factorial(9), rel=0.1
    )


@pytest.mark.parametrize("norm", [0.7, 3.0, 100.0])
@pytest.mark.parametrize("side", [2, 5, 64, 200])
def test_a_larger_move_is_taken_in_part(norm: float, side: int) -> None:
    move = random_skew(side, norm)
    step, factor = exponential_minus_one(move.float())
    taken = factor.flatten() * norm
    assert (taken > 0.99 * LARGEST).all()
    assert (taken < 1.5 * LARGEST).all()
    assert (step - exact(factor * move)).abs().max() < 5e-7


@given(
    degree=st.sampled_from([2, 4]),
    share=st.floats(0, 1),
    side=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_lower_degrees_stay_on_the_manifold_for_the_moves_that_they_are_chosen_for(
    degree: int, share: float, side: int, seed: int
) -> None:
    norm = share * CAPACITY[degree] / 4
    move = random_skew(side, norm, seed)
    step, factor = exponential_minus_one(move, degree)
    assert torch.equal(factor, torch.ones(2, 1, 1, dtype=torch.float64))
    rotation = step + torch.eye(side)
    assert (rotation @ rotation.mT - torch.eye(side)).abs().max() < 1.2e-7  # float32 rounds more
    error = norm ** (degree + 1) / math.factorial(degree + 1)
    assert torch.linalg.matrix_norm(step - exact(move), 2).max() <= 1.1 * error + 1e-15


def test_the_degree_is_chosen_for_four_times_the_move() -> None:
    for norm, degree in ((0.0, 2), (0.02, 2), (0.03, 4), (0.07, 4), (0.1, 8), (3.0, 8)):
        assert degree_for(random_skew(2, norm)) == degree


@pytest.mark.parametrize("side", [64, 512])
@pytest.mark.parametrize("bulk", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
def test_a_single_fast_plane_among_slow_ones_is_seen(side: int, bulk: float) -> None:
    generator = torch.Generator().manual_seed(side)
    angles = torch.full((side // 2,), bulk, dtype=torch.float64)
    angles[0] = 1.0
    frame = torch.linalg.qr(torch.randn(side, side, generator=generator, dtype=torch.float64))[0]
    even, odd = frame[:, ::2], frame[:, 1::2]
    move = (even * angles) @ odd.T
    _, factor = exponential_minus_one((move - move.T)[None])
    assert LARGEST * (1 - 1e-12) <= factor.item() < LARGEST / 0.5  # the lower bound but for rounding


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e-20, 1e-10])
def test_no_and_tiny_moves_are_their_own_exponential(size: float) -> None:
    move = random_skew(6, 1.0).float() * size
    step, factor = exponential_minus_one(move)
    assert torch.equal(factor, torch.ones(2, 1, 1))
    assert torch.allclose(step, move, rtol=1e-6, atol=1e-6 * size)


@pytest.mark.parametrize("squarings", [3, 6])
@pytest.mark.parametrize("norm", [1e-6, 0.5, 3.5])
def test_squarings_raise_the_capacity(squarings: int, norm: float) -> None:
    move = random_skew(16, norm)
    step, factor = exponential_minus_one(move.float(), squarings=squarings)
    assert torch.equal(factor, torch.ones(2, 1, 1))
    assert (step - exact(move)).abs().max() < 1e-6 * norm


@pytest.mark.parametrize("side", SIDES)
def test_any_packed_numbers_are_a_skew_matrix_and_each_is_used_once(side: int) -> None:
    packed = torch.rand(2, *packed_shape(side)) + 1
    full = unpack(packed, side)
    assert full.shape == (2, side, side)
    assert torch.equal(full, -full.mT)
    above = full[0][torch.ones(side, side).triu(1) == 1].abs()
    assert len(above.unique()) == side * (side - 1) // 2
    assert torch.isin(above, packed[0]).all()


@pytest.mark.parametrize("side", SIDES)
def test_packing_a_product_and_unpacking_it_gives_the_product(side: int) -> None:
    left, right = torch.randn(4, 3, 7, side), torch.randn(3, 7, side)
    found = packed_skew_products(left, right)
    assert len(found) == 4
    for own, packed in zip(left, found, strict=True):
        product = own.mT @ right
        assert packed.shape == (3, *packed_shape(side))
        assert torch.allclose(unpack(packed, side), product - product.mT, atol=1e-6)
        assert torch.allclose(skew_product(own, right), product - product.mT, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_a_packed_gradient_is_that_of_the_unpacked_matrix(side: int) -> None:
    """What autograd finds for the packed numbers of A in <G exp(A), V> at A = 0."""
    rows, target = torch.randn(2, 1, 5, side), torch.randn(1, 5, side)
    for own, packed in zip(rows, packed_skew_products(rows, target), strict=True):
        lie = torch.zeros(1, *packed_shape(side), requires_grad=True)
        (own @ unpack(lie, side) * target).sum().backward()
        assert torch.allclose(packed, lie.grad, atol=1e-5)
