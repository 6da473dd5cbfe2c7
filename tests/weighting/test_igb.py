import math

import numpy as np
import pytest

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    method = mtlkit.create_method("igb", 2)
    assert step(method, [9.0, 9.0])[1] == pytest.approx([1 / 9, 1 / 9])
    assert step(method, [4.0, 2.0])[1] == pytest.approx([1 / 4, 1 / 2])  # the base
    # ratios 2/4 and 2/2
    shares = [math.exp(0.5), math.exp(1.0)]
    total, weights = step(method, [2.0, 2.0])
    assert weights == pytest.approx([2 * share / sum(shares) / 2 for share in shares])
    assert total == pytest.approx(2)


@pytest.mark.parametrize(("base", "window"), [(1, 1), (2, 3), (3, 2)])
def test_thirty_steps_equal_a_plain_implementation(base, window):
    losses = np.random.default_rng(0).uniform(0.1, 5, (30, 3))
    method = mtlkit.create_method(f"igb(base={base}, window={window})", 3)
    for t, row in enumerate(losses):
        expected = np.ones(3)
        if t >= base * window:
            ratios = row / losses[(base - 1) * window : base * window].mean(axis=0)
            expected = 3 * np.exp(ratios) / np.exp(ratios).sum()
        assert step(method, row.tolist())[1] == pytest.approx((expected / row).tolist())


def test_the_task_with_the_largest_gap_counts_most_whatever_the_units():
    factors = []
    for unit in (1.0, 1e3):
        method = mtlkit.create_method("igb(base=1)", 2)
        step(method, [2.0, 2.0 * unit])
        values = [0.5, 1.8 * unit]
        _, weights = step(method, values)
        factors.append([w * v for w, v in zip(weights, values, strict=True)])
    assert factors[0] == pytest.approx(factors[1])
    assert factors[0][0] < factors[0][1]


def test_the_trainer_sets_the_length_of_an_epoch():
    method = mtlkit.create_method("igb", 2)
    method.parts[0].set_epoch_length(3)
    for t in range(7):
        step(method, [float(t + 1), 1.0])
    assert method.parts[0].state_dict()["base_losses"].tolist() == [5.0, 1.0]


def test_a_loss_of_zero_takes_no_part_and_one_below_makes_the_total_nan():
    method = mtlkit.create_method("igb(base=1)", 2)
    assert step(method, [0.0, 2.0])[1] == pytest.approx([0.0, 0.5])
    assert math.isnan(step(method, [-1.0, 2.0])[0])
