"""IMTL-G: equal projections."""

import pytest
import torch
from hypothesis import given, settings
from torchjd import aggregation

import mtlkit
from tests.weighting.strategies import gradients


def test_orthogonal_tasks_by_hand():
    # units e1, e2: projections w1*3 and w2*1 are equal, w1 + w2 = 1: w = (1/4, 3/4)
    rows = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    method = mtlkit.create_method("imtl_g", 2)
    torch.testing.assert_close(method.weights(rows @ rows.T), torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.75, 0.75]))


@settings(max_examples=200)
@given(gradients())
def test_projections_on_all_units_are_equal_and_weights_sum_to_one(rows):
    method = mtlkit.create_method("imtl_g", len(rows))
    weights = method.weights(rows @ rows.T)
    torch.testing.assert_close(weights.sum(), torch.ones((), dtype=torch.float64))
    merged = weights @ rows
    projections = rows @ merged / rows.norm(dim=1)
    tolerance = 1e-7 * float(weights.abs().max() * rows.norm(dim=1).max())
    assert (projections - projections[0]).abs().max() <= tolerance


@settings(max_examples=200)
@given(gradients())
def test_it_equals_torchjd_where_gradients_are_independent(rows):
    """TorchJD inverts the Gram matrix itself; for dependent gradients its pseudo-inverse, which is not
    scale invariant, picks other weights for the same equations."""
    expected = aggregation.IMTLG()(rows)
    merged = mtlkit.create_method("imtl_g", len(rows)).combine(rows)
    torch.testing.assert_close(merged, expected, rtol=1e-5, atol=1e-6 * float(expected.norm()))


def test_identical_tasks_share_their_weight():
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    method = mtlkit.create_method("imtl_g", 3)
    torch.testing.assert_close(method.weights(rows @ rows.T), torch.full((3,), 1 / 3))


def test_opposite_tasks_cancel():
    merged = mtlkit.create_method("imtl_g", 2).combine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]))
    assert not merged.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-3])
def test_gradients_that_cancel_each_other_give_no_direction(scale, dtype):
    one = torch.randn(1, 50, generator=torch.Generator().manual_seed(0), dtype=dtype)
    signs = torch.tensor([1.0, -1.0] * 4, dtype=dtype)[:, None]
    merged = mtlkit.create_method("imtl_g", 8).combine(scale * signs * one)
    assert merged.norm() < 1e-5 * scale * one.norm()


def test_a_zero_gradient_takes_no_part():
    rows = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    weights = mtlkit.create_method("imtl_g", 3).weights(rows @ rows.T)
    torch.testing.assert_close(weights, torch.tensor([0.25, 0.0, 0.75]))
