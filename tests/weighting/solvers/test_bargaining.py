import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mtlkit.weighting._solvers import bargaining_weights, min_norm_point
from tests.weighting.solvers.drawn_gradients import draw, gradients, norms_of, seeds

powers = st.sampled_from([0.5, 1.0, 2.0, 5.0])


@settings(max_examples=400)
@given(gradients(), powers)
def test_weights_satisfy_the_power_law(rows, power):
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = bargaining_weights(gram, power=power)
    active = norms > 0
    assert (weights[~active] == 0).all()
    if not weights.any():
        # no solution: a positive combination of the gradients vanishes
        unit = rows[active] / norms[active][:, None]
        least = min_norm_point(unit @ unit.T)
        assert np.linalg.norm(least @ unit) < 1e-6
        return
    assert (weights[active] > 0).all()
    ratio = ((gram @ weights) * weights**power)[active]
    size = (np.abs(gram) @ weights * weights**power)[active]
    assert (np.abs(ratio - 1) <= 1e-13 * (size + 1)).all()


@given(seeds, st.integers(1, 4), powers)
def test_minimum_is_that_of_a_general_minimizer(seed, count, power):
    rows = draw(seed, count, "plain")
    gram = rows @ rows.T

    def objective(log: np.ndarray) -> float:
        a = np.exp(log)
        gain = log if power == 1 else a ** (1 - power) / (1 - power)
        return a @ gram @ a / 2 - gain.sum()

    def gradient(log: np.ndarray) -> np.ndarray:
        a = np.exp(log)
        return a * (gram @ a - a**-power)

    found = bargaining_weights(gram, power=power)
    start = -np.log(gram.diagonal()) / (1 + power)
    best = minimize(objective, start, jac=gradient, method="BFGS", options={"gtol": 1e-9})
    assert objective(np.log(found)) <= best.fun + 1e-12 * (1 + abs(best.fun))
    np.testing.assert_allclose(found, np.exp(best.x), rtol=1e-3)


def test_no_solution_where_gradients_oppose():
    gram = np.array([[1.0, -2.0], [-2.0, 4.0]])
    assert (bargaining_weights(gram, power=1.0) == 0).all()


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_rounding_decides_what_vanishes(power):
    rows = np.array([[1.0, 0.0], [-1.0, 1e-5]])
    gram = rows @ rows.T
    assert (bargaining_weights(gram, power=power) > 0).all()
    assert (bargaining_weights(gram, power=power, rounding=1e-7) == 0).all()


def test_all_weights_are_zero_without_gradients():
    np.testing.assert_array_equal(bargaining_weights(np.zeros((2, 2)), power=1.0), [0, 0])


def test_forty_tasks_are_solved_exactly():
    rows = np.random.default_rng(0).normal(size=(40, 45))
    gram = rows @ rows.T
    weights = bargaining_weights(gram, power=1.0)
    np.testing.assert_allclose(gram @ weights * weights, 1, rtol=1e-11)
