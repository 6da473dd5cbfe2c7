import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    total, weights = step(mtlkit.create_method("si", 3), [0.5, 4.0, 1.0])
    assert total == pytest.approx(math.log(2.0))
    assert weights == pytest.approx([2.0, 0.25, 1.0])


@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=5), st.floats(1e-9, 1e9))
def test_units_of_a_loss_do_not_change_the_gradient(values, factor):
    """The gradient of log(c L) is that of log(L): w dL stays."""
    _, weights = step(mtlkit.create_method("si", len(values)), values)
    _, scaled = step(mtlkit.create_method("si", len(values)), [values[0] * factor, *values[1:]])
    assert scaled[0] * factor == pytest.approx(weights[0])
    assert scaled[1:] == weights[1:]


def test_a_loss_of_zero_takes_no_part():
    total, weights = step(mtlkit.create_method("si", 2), [0.0, 2.0])
    assert total == pytest.approx(math.log(2))
    assert weights == [0.0, 0.5]


def test_after_normalize_the_value_is_that_of_the_normalized_losses():
    method = mtlkit.create_method("normalize(burn_in=0)+si", 2)
    step(method, [2.0, 10.0])
    total, weights = step(method, [1.0, 5.0])
    assert total == pytest.approx(2 * math.log(0.5))
    assert weights == pytest.approx([1.0, 0.2])


def test_a_loss_that_is_not_finite_leaves_the_other_heads_alone():
    method = mtlkit.create_method("si", 3)
    heads = [torch.ones((), requires_grad=True) for _ in range(3)]
    method.total([2 * heads[0], heads[1] * torch.nan, -3 * heads[2]]).backward()
    assert [bool(head.grad.isfinite()) for head in heads] == [True, False, False]
    assert heads[0].grad.item() == pytest.approx(1.0)
