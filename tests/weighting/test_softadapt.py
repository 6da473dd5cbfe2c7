import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.weighting.softadapt import backward_difference
from tests.weighting.loss_steps import step


def test_worked_example():
    method = mtlkit.create_method("softadapt(beta=2.0)", 2)
    assert step(method, [4.0, 2.0])[1] == [0.5, 0.5]
    # rates -1 and -0.5
    expected = [math.exp(-2) / (math.exp(-2) + math.exp(-1)), 1 / (1 + math.exp(-1))]
    assert step(method, [3.0, 1.5])[1] == pytest.approx(expected)
    # rates -1 and +0.5, loss-weighted with the means 3.5 and 1.75, normalized to -2/3 and 1/3
    method = mtlkit.create_method("softadapt(beta=3.0, normalized=True, loss_weighted=True)", 2)
    step(method, [4.0, 1.5])
    raw = [3.5 * math.exp(-2), 1.75 * math.exp(1)]
    assert step(method, [3.0, 2.0])[1] == pytest.approx([r / sum(raw) for r in raw])


@pytest.mark.parametrize("points", [2, 3, 5])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_thirty_steps_equal_a_plain_implementation(points, normalized, weighted):
    losses = np.random.default_rng(points).uniform(0.1, 5, (30, 3))
    options = f"beta=0.7, points={points}, normalized={normalized}, loss_weighted={weighted}"
    method = mtlkit.create_method(f"softadapt({options})", 3)
    for t, row in enumerate(losses):
        last = losses[max(t - points + 1, 0) : t + 1]
        rates = np.zeros(3)
        if len(last) == points:
            # slope at the last point of the polynomial through all points
            curves = np.polyfit(np.arange(points) - points + 1, last, points - 1)
            rates = curves[-2]
        if normalized and rates.any():
            rates = rates / np.abs(rates).sum()
        expected = np.exp(0.7 * rates) * (last.mean(axis=0) if weighted else 1)
        found = step(method, row.tolist())[1]
        assert found == pytest.approx((expected / expected.sum()).tolist(), rel=1e-6)


@given(st.integers(2, 7))
def test_the_difference_is_exact_for_polynomials(points):
    times = np.arange(points) - points + 1.0
    for degree in range(points):
        slope = np.dot(backward_difference(points), times**degree)
        assert slope == pytest.approx(1.0 if degree == 1 else 0.0, abs=1e-6)


@pytest.mark.parametrize("beta", [-1.0, 1.0])
def test_the_sign_of_beta_decides_which_loss_counts_more(beta):
    method = mtlkit.create_method(f"softadapt(beta={beta})", 2)
    step(method, [1.0, 1.0])
    falling, rising = step(method, [0.5, 1.5])[1]
    assert (rising > falling) == (beta > 0)
    assert falling + rising == pytest.approx(1)


def test_normalized_weights_do_not_depend_on_the_unit_of_the_losses():
    one, other = (mtlkit.create_method("softadapt(normalized=True)", 2) for _ in range(2))
    for values in ([4.0, 2.0], [3.0, 1.9], [1.0, 2.1]):
        expected = step(one, values)[1]
        assert step(other, [1e6 * value for value in values])[1] == pytest.approx(expected)
