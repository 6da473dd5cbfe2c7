import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.weighting._solvers import min_norm_point
from tests.weighting.solvers.drawn_gradients import draw, gradients, norms_of, seeds


@settings(max_examples=400)
@given(gradients())
def test_optimality_conditions_hold(rows):
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = min_norm_point(gram)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
    products = gram @ weights
    square = weights @ products
    # the products are sums of terms of this size
    size = norms * (weights @ norms)
    assert (products >= square - 1e-13 * (size + weights @ size)).all()


@given(seeds, st.integers(1, 4))
def test_no_face_of_the_hull_has_a_shorter_vector(seed, count):
    rows = draw(seed, count, "plain")
    candidates = []
    for size in range(1, count + 1):
        for face in map(list, itertools.combinations(range(count), size)):
            free = np.linalg.solve(rows[face] @ rows[face].T, np.ones(size))
            if (free >= 0).all():
                candidates.append(free / free.sum() @ rows[face])
    best = min(candidates, key=np.linalg.norm)
    np.testing.assert_allclose(min_norm_point(rows @ rows.T) @ rows, best, atol=1e-12)


def test_zero_gradients_share_the_weights():
    np.testing.assert_array_equal(min_norm_point(np.diag([0.0, 2.0, 0.0])), [0.5, 0, 0.5])


@pytest.mark.parametrize("seed", [4092, 5170, 8, 26, 52])
def test_iterations_end_for_gradients_of_very_unequal_norms(seed):
    # columns of unequal lengths made the exchanges of non-negative least squares cycle
    rng = np.random.default_rng(seed)
    for count in (5, 11, 40):
        rows = rng.normal(size=(count, count + 2)) * 10.0 ** rng.uniform(-7, 7, size=(count, 1))
        weights = min_norm_point(rows @ rows.T)
        products, norms = rows @ (weights @ rows), norms_of(rows)
        size = norms * (weights @ norms)
        assert (products >= weights @ products - 1e-13 * (size + weights @ size)).all()
