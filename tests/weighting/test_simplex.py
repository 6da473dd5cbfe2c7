import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.weighting._forms import simplex
from mtlkit.weighting._solvers import project_onto_simplex as in_numpy


def in_torch(point: np.ndarray) -> np.ndarray:
    return simplex.project_onto_simplex(torch.from_numpy(point)).numpy()


either = pytest.mark.parametrize("project_onto_simplex", [in_numpy, in_torch])
points = st.lists(st.floats(-5, 5), min_size=1, max_size=8).map(np.array)


@either
@given(points)
def test_optimality_conditions_hold(project_onto_simplex, point):
    found = project_onto_simplex(point)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    # the gradient of the distance is constant where the entry is positive, and larger elsewhere
    gradient = found - point
    least = gradient[found > 0].max()
    assert (gradient >= least - 1e-12).all()


@either
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=4).map(np.array))
def test_no_face_has_a_nearer_point(project_onto_simplex, point):
    candidates = []
    for size in range(1, len(point) + 1):
        for face in map(list, itertools.combinations(range(len(point)), size)):
            candidate = np.zeros(len(point))
            candidate[face] = point[face] - (point[face].sum() - 1) / size
            if (candidate >= 0).all():
                candidates.append(candidate)
    best = min(candidates, key=lambda candidate: np.linalg.norm(candidate - point))
    np.testing.assert_allclose(project_onto_simplex(point), best, atol=1e-12)


@either
@given(points)
def test_a_point_of_the_simplex_stays(project_onto_simplex, point):
    inside = project_onto_simplex(point)
    np.testing.assert_allclose(project_onto_simplex(inside), inside, atol=1e-15)


@either
@given(points, st.randoms(use_true_random=False))
def test_order_of_the_entries_does_not_matter(project_onto_simplex, point, random):
    order = random.sample(range(len(point)), len(point))
    np.testing.assert_allclose(
        project_onto_simplex(point[order].copy()), project_onto_simplex(point)[order], atol=1e-15
    )
