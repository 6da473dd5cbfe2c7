import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    # r = (1/2, 1/2), L = (3, 4), cos = 7 / (5 sqrt 2)
    total, weights = step(mtlkit.create_method("cosmos(penalty=2.0)", 2), [3.0, 4.0])
    cosine = 7 / (5 * math.sqrt(2))
    assert total == pytest.approx(3.5 - 2 * cosine)
    # (1/sqrt 2 - cos * L_k / 5) / 5
    slopes = [(1 / math.sqrt(2) - cosine * loss / 5) / 5 for loss in (3.0, 4.0)]
    assert weights == pytest.approx([0.5 - 2 * slope for slope in slopes])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_on_the_preferred_direction_only_the_sum_has_a_gradient(values):
    total = sum(values)
    method = mtlkit.create_method("cosmos(penalty=3.0)", len(values), preference=values)
    value, weights = step(method, values)
    assert weights == pytest.approx([v / total for v in values], abs=1e-6)
    assert value == pytest.approx(sum(v * v for v in values) / total - 3.0)


def test_values_and_gradients_equal_torchjd():
    from torchjd.scalarization import COSMOS

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 6
        preference = torch.rand(count, generator=generator, dtype=torch.float64) + 0.05
        preference = preference / preference.sum()
        stacked = (3 * torch.rand(count, generator=generator, dtype=torch.float64)).requires_grad_()
        expected = COSMOS(1.5, preference)(stacked)
        expected.backward()
        method = mtlkit.create_method("cosmos(penalty=1.5)", count)
        method.parts[0].set_preference(preference)
        total, weights = step(method, stacked.tolist())
        assert total == pytest.approx(expected.item())
        assert weights == pytest.approx(stacked.grad.tolist(), abs=1e-12)


def test_a_preference_that_was_set_is_saved():
    method = mtlkit.create_method("cosmos", 2)
    method.parts[0].set_preference([1, 3])
    copy = mtlkit.create_method("cosmos", 2)
    copy.load_state_dict(method.state_dict())
    assert step(copy, [1.0, 2.0]) == step(method, [1.0, 2.0])
    assert str(method) == "cosmos(preference=[1, 3])"


def test_losses_of_zero_are_defined():
    assert step(mtlkit.create_method("cosmos", 2), [0.0, 0.0]) == (0.0, [0.5, 0.5])
