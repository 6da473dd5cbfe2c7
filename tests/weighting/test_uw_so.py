import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    # 1 / (2 L) = 0.25 and 1
    _, weights = step(mtlkit.create_method("uw_so(temperature=2.0)", 2), [2.0, 0.5])
    shares = [math.exp(0.25), math.exp(1.0)]
    assert weights == pytest.approx([share / sum(shares) for share in shares])


def test_thirty_steps_equal_a_plain_implementation():
    method = mtlkit.create_method("uw_so(temperature=3.0)", 4)
    for row in np.random.default_rng(0).uniform(0.1, 5, (30, 4)):
        shares = np.exp(1 / row / 3)
        assert step(method, row.tolist())[1] == pytest.approx((shares / shares.sum()).tolist())


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=6))
def test_smaller_losses_have_larger_weights_of_sum_one(values):
    _, weights = step(mtlkit.create_method("uw_so", len(values)), values)
    assert sum(weights) == pytest.approx(1)
    order = np.argsort(values)
    assert (np.diff(np.array(weights)[order]) <= 1e-12).all()


def test_a_high_temperature_gives_equal_weights():
    _, weights = step(mtlkit.create_method("uw_so(temperature=1e9)", 3), [0.1, 1.0, 10.0])
    assert weights == pytest.approx([1 / 3] * 3)


def test_a_loss_of_zero_takes_no_part_and_one_below_makes_the_total_nan():
    method = mtlkit.create_method("uw_so", 2)
    assert step(method, [0.0, 2.0])[1] == pytest.approx([0.0, 1.0])
    assert step(method, [0.0, 0.0])[1] == [0.0, 0.0]
    assert math.isnan(step(method, [-1.0, 2.0])[0])
