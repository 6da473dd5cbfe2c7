import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    total, weights = step(mtlkit.create_method("gls", 2), [2.0, 8.0])
    assert total == pytest.approx(4.0)
    assert weights == pytest.approx([1.0, 0.25])  # 4 / (2 * 2), 4 / (2 * 8)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_it_is_finite_and_right_for_a_thousand_tasks(scale):
    generator = torch.Generator().manual_seed(0)
    values = (scale * torch.rand(1000, generator=generator) + scale * 1e-3).tolist()
    total, weights = step(mtlkit.create_method("gls", 1000), values, torch.float32)
    expected = math.exp(sum(map(math.log, values)) / 1000)
    assert total == pytest.approx(expected, rel=1e-4)
    for weight, value in zip(weights, values, strict=True):
        assert weight == pytest.approx(expected / 1000 / value, rel=1e-4)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.floats(1e-9, 1e9))
def test_rescaling_one_loss_leaves_the_balance_of_log_gradients(values, factor):
    method = mtlkit.create_method("gls", len(values))
    total, weights = step(method, values)
    scaled_total, scaled = step(method, [values[0] * factor, *values[1:]])
    assert [w * v / total for w, v in zip(weights, values, strict=True)] == pytest.approx(
        [1 / len(values)] * len(values)
    )
    assert scaled_total == pytest.approx(total * factor ** (1 / len(values)), rel=1e-6)
    assert scaled[0] * factor * values[0] / scaled_total == pytest.approx(1 / len(values))


def test_a_loss_of_zero_takes_no_part_and_a_negative_one_is_not_finite():
    total, weights = step(mtlkit.create_method("gls", 3), [2.0, 0.0, 8.0])
    assert total == pytest.approx(4.0)
    assert weights == pytest.approx([1.0, 0.0, 0.25])
    assert step(mtlkit.create_method("gls", 2), [0.0, 0.0]) == (0.0, [0.0, 0.0])
    assert math.isnan(step(mtlkit.create_method("gls", 2), [2.0, -1.0])[0])


def test_values_and_gradients_equal_torchjd():
    from torchjd.scalarization import GeometricMean

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 8
        stacked = torch.rand(count, generator=generator, dtype=torch.float64).requires_grad_()
        expected = GeometricMean()(stacked)
        expected.backward()
        total, weights = step(mtlkit.create_method("geometric_mean", count), stacked.tolist())
        assert total == pytest.approx(expected.item())
        assert weights == pytest.approx(stacked.grad.tolist())


def test_geometric_mean_is_another_name_of_it():
    assert str(mtlkit.create_method("geometric_mean", 2)) == "gls"
