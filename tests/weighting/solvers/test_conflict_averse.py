import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mtlkit.weighting._solvers import conflict_averse_weights, dual_cone_weights
from tests.weighting.solvers.drawn_gradients import draw, gradients, norms_of, seeds

radii = st.sampled_from([0.05, 0.4, 0.9, 1.0, 1.7])


@settings(max_examples=400)
@given(gradients(least=1), radii)
def test_no_duality_gap_is_left(rows, c):
    gram, norms = rows @ rows.T, norms_of(rows)
    count = len(rows)
    weights = conflict_averse_weights(gram, c)
    mean = rows.mean(axis=0)
    correction = weights - 1 / count
    assert (correction >= -1e-15).all()
    direction = weights @ rows
    radius = c * np.linalg.norm(mean)
    # inner products are known to the rounding of their terms, which may nearly cancel
    terms = weights @ norms
    slack = 1e-13 + 1e-14 * (terms / max(min(radius, radius / c), 1e-300)) ** 2
    assert np.linalg.norm(direction - mean) <= radius * (1 + slack)
    simplex = correction / correction.sum() if correction.any() else np.full(count, 1 / count)
    point = simplex @ rows
    bound = point @ mean + radius * np.linalg.norm(point)
    if np.linalg.norm(direction - mean) < radius * (1 - 1e-6):
        bound = 0.0  # Pareto stationary: nothing can improve all tasks
    error = norms * (1e-12 * terms + slack * radius)
    assert (rows @ direction >= bound - error - simplex @ error).all()


@given(seeds, st.integers(2, 4), st.sampled_from([0.2, 0.5, 0.9]))
def test_optimum_is_that_of_a_general_minimizer(seed, count, c):
    rows = draw(seed, count, "plain")
    gram = rows @ rows.T
    mean = np.full(count, 1 / count)
    radius = c * np.sqrt(mean @ gram @ mean)

    def dual(w: np.ndarray) -> float:
        return w @ gram @ mean + radius * np.sqrt(w @ gram @ w)

    best = minimize(
        dual,
        mean,
        method="SLSQP",
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    found = (gram @ conflict_averse_weights(gram, c)).min()
    assert abs(found - best.fun) <= 1e-6 * gram.max()
    assert found <= best.fun + 1e-12 * gram.max()  # weak duality


def test_c_of_zero_and_zero_gradients_give_the_mean():
    np.testing.assert_array_equal(conflict_averse_weights(np.eye(2), 0.0), [0.5, 0.5])
    np.testing.assert_array_equal(conflict_averse_weights(np.zeros((2, 2)), 0.4), [0.5, 0.5])


def test_stationary_gradients_give_the_projected_mean_if_the_ball_holds_it():
    rows = np.array([[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]])
    gram, uniform = rows @ rows.T, np.full(3, 1 / 3)
    projected = dual_cone_weights(gram, uniform) @ rows
    np.testing.assert_allclose(projected, [0, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(conflict_averse_weights(gram, 0.9) @ rows, projected, atol=1e-12)
    # the ball of a smaller radius ends before
    nearer = conflict_averse_weights(gram, 0.1) @ rows
    assert np.linalg.norm(nearer - rows.mean(axis=0)) <= 0.1 * np.linalg.norm(rows.mean(axis=0)) + 1e-12


@settings(max_examples=100)
@given(gradients(), radii)
def test_opposite_gradients_whose_mean_vanishes_are_finite(rows, c):
    rows = np.vstack([rows, -rows])
    weights = conflict_averse_weights(rows @ rows.T, c)
    assert np.isfinite(weights).all()
    assert np.linalg.norm(weights @ rows) <= 1e-6 * (weights @ norms_of(rows))
