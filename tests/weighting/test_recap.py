import numpy as np
import pytest

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    method = mtlkit.create_method("recap(window=2, temperature=1.0)", 2)
    for values in ([4.0, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, 1.0]):
        assert step(method, values)[1] == [1.0, 1.0]
    # first task: means 3 and 1, c = 3; of 4, 2, 1, 1 the variance is 22/4 - 4 = 1.5, i = sqrt(1.5) / 4
    signals = np.array([3 + 1.5**0.5 / 4, 1.0])
    expected = 2 * np.exp(signals) / np.exp(signals).sum()
    assert step(method, [9.0, 9.0])[1] == pytest.approx(expected.tolist())


def test_thirty_steps_equal_a_plain_implementation():
    losses = np.random.default_rng(0).uniform(0.1, 5, (30, 3))
    method = mtlkit.create_method("recap(window=4, temperature=2.0)", 3)
    for t, row in enumerate(losses):
        expected = np.ones(3)
        if t >= 8:
            old, new = losses[t - 8 : t - 4].mean(axis=0), losses[t - 4 : t].mean(axis=0)
            signals = (old / new + losses[t - 8 : t].std(axis=0) / (old + new)) / 2
            expected = 3 * np.exp(signals) / np.exp(signals).sum()
        assert step(method, row.tolist())[1] == pytest.approx(expected.tolist())


def test_a_saturated_loss_gets_less_than_one_that_falls_and_less_than_one_that_swings():
    method = mtlkit.create_method("recap(window=2, temperature=1.0)", 3)
    for t in range(6):
        _, weights = step(method, [1.0, 0.5**t, 1.0 + 0.5 * (-1) ** t])
    assert weights[0] < weights[2] < weights[1]
    assert sum(weights) == pytest.approx(3)


def test_a_task_without_enough_losses_counts_as_constant():
    method = mtlkit.create_method("recap(window=1, temperature=1.0)", 2)
    for values in ([1.0, None], [1.0, 7.0]):
        step(method, values)
    assert step(method, [1.0, 2.0])[1] == pytest.approx([1.0, 1.0])


def test_losses_of_zero_have_finite_weights():
    method = mtlkit.create_method("recap(window=1)", 2)
    for _ in range(4):
        _, weights = step(method, [0.0, 1.0])
    assert weights == pytest.approx([1.0, 1.0])
