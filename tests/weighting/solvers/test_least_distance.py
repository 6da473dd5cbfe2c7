import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.weighting._solvers import constrained_descent_weights, min_norm_point
from tests.weighting.solvers.drawn_gradients import KINDS, draw, norms_of, seeds


@settings(max_examples=200)
@given(seeds, st.integers(1, 12), st.sampled_from(KINDS), st.floats(0, 1))
def test_optimality_conditions_hold(seed, count, kind, progress):
    rows = draw(seed, count, kind)
    if kind in ("dependent", "duplicate", "ill_conditioned"):
        rows = rows / np.maximum(norms_of(rows), 1e-300)[:, None]
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = constrained_descent_weights(gram, progress)
    assert weights[0] == 1
    multipliers = weights[1:]
    assert (multipliers >= 0).all()
    direction = weights @ rows
    needed = progress * norms[1:] ** 2
    slack = rows[1:] @ direction - needed
    size = norms[1:] * (weights @ norms) + needed
    if not multipliers.any() and (slack < -1e-9 * size).any():
        # refused: no vector satisfies all constraints, so a combination of them vanishes
        active = norms[1:] > 0
        unit = rows[1:][active] / norms[1:][active][:, None]
        assert np.linalg.norm(min_norm_point(unit @ unit.T) @ unit) < 1e-5
        return
    assert (slack >= -1e-9 * size).all()
    assert multipliers @ np.abs(slack) <= 1e-9 * (multipliers @ size) + 1e-300


@given(seeds, st.integers(1, 4), st.floats(0, 1))
def test_no_set_of_active_constraints_gives_a_nearer_vector(seed, count, progress):
    rows = draw(seed, count, "plain")
    gram = rows @ rows.T
    needed = progress * gram.diagonal()[1:]
    candidates = []
    for size in range(count):
        for active in itertools.combinations(range(1, count), size):
            point = rows[0]
            if active:
                chosen = rows[list(active)]
                point = point + np.linalg.pinv(chosen) @ (needed[np.array(active) - 1] - chosen @ point)
            if (rows[1:] @ point >= needed - 1e-10).all():
                candidates.append(point)
    best = min(candidates, key=lambda point: np.linalg.norm(point - rows[0]))
    found = constrained_descent_weights(gram, progress) @ rows
    np.testing.assert_allclose(found, best, atol=1e-8)


def test_without_a_feasible_vector_it_is_the_first_gradient():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    weights = constrained_descent_weights(rows @ rows.T, 0.1)
    np.testing.assert_array_equal(weights, [1, 0, 0])


def test_a_zero_gradient_asks_for_nothing():
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    weights = constrained_descent_weights(rows @ rows.T, 0.5)
    np.testing.assert_allclose(weights, [1, 0, 1], atol=1e-14)
