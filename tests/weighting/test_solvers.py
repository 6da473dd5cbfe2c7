"""Fuzz of the K x K solvers: optimality conditions to rounding, whatever the matrix."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.weighting import solvers

KINDS = [
    "plain",
    "dependent",
    "duplicate",
    "ill_conditioned",
    "unequal_norms",
    "conflicting",
    "zero_row",
]
matrices = st.builds(
    lambda seed, count, kind: (draw(np.random.default_rng(seed), count, kind), kind),
    st.integers(0, 2**32 - 1),
    st.integers(2, 12),
    st.sampled_from(KINDS),
)


def draw(rng: np.random.Generator, count: int, kind: str) -> np.ndarray:
    rows = rng.normal(size=(count, count + 2))
    if kind == "dependent":
        rows = rng.normal(size=(count, max(1, count // 2)))
    elif kind == "duplicate":
        rows[-1] = rows[0]
    elif kind == "ill_conditioned":  # the Gram matrix has condition number 1e12
        left, _, right = np.linalg.svd(rows, full_matrices=False)
        rows = left * np.logspace(0, -6, count) @ right
    elif kind == "unequal_norms":
        rows *= rng.permutation(np.logspace(0, 6, count))[:, None]
    elif kind == "conflicting":
        rows -= rows.mean(axis=0) * 0.999
    elif kind == "zero_row":
        rows[rng.integers(count)] = 0
    return rows


def norms_of(rows: np.ndarray) -> np.ndarray:
    return np.sqrt((rows * rows).sum(axis=1))


@settings(max_examples=400)
@given(matrices)
def test_min_norm_point_satisfies_its_optimality_conditions(drawn):
    rows, _ = drawn
    gram = rows @ rows.T
    weights = solvers.min_norm_point(gram)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
    products = gram @ weights
    square = weights @ products
    # the products are sums of terms of this size
    size = norms_of(rows) * (weights @ norms_of(rows))
    assert (products >= square - 1e-13 * (size + weights @ size)).all()


@settings(max_examples=300)
@given(matrices)
def test_projections_onto_the_dual_cone_satisfy_their_optimality_conditions(drawn):
    rows, _ = drawn
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = solvers.dual_cone_projections(gram)
    multipliers = weights - np.eye(len(gram))
    assert (multipliers >= 0).all()
    products = weights @ gram  # of each projection with each gradient
    size = (np.abs(weights) @ norms)[:, None] * norms
    assert (products >= -1e-12 * size).all()
    assert (
        np.abs((multipliers * products).sum(axis=1)) <= 1e-12 * (multipliers * size).sum(axis=1)
    ).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_projections_equal_those_found_by_trying_every_active_set(seed, count):
    rows = np.random.default_rng(seed).normal(size=(count, count + 1))
    gram = rows @ rows.T
    found = solvers.dual_cone_projections(gram) @ rows
    for index, row in enumerate(rows):
        candidates = []
        for size in range(count + 1):
            for subset in map(list, itertools.combinations(range(count), size)):
                chosen = rows[subset]
                basis = np.linalg.pinv(chosen) @ chosen if subset else np.zeros((count + 1, count + 1))
                point = row - basis @ row
                if (rows @ point >= -1e-12).all():
                    candidates.append(point)
        best = min(candidates, key=lambda point: np.linalg.norm(point - row))
        np.testing.assert_allclose(found[index], best, atol=1e-10)


@settings(max_examples=400)
@given(matrices, st.sampled_from([0.5, 1.0, 2.0, 5.0]))
def test_bargaining_weights_satisfy_the_power_law(drawn, power):
    rows, _ = drawn
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = solvers.bargaining_weights(gram, power)
    active = norms > 0
    assert (weights[~active] == 0).all()
    if not weights.any():
        # no solution: a positive combination of the gradients vanishes
        unit = rows[active] / norms[active][:, None]
        least = solvers.min_norm_point(unit @ unit.T)
        assert np.linalg.norm(least @ unit) < 1e-6
        return
    assert (weights[active] > 0).all()
    ratio = ((gram @ weights) * weights**power)[active]
    size = (np.abs(gram) @ weights * weights**power)[active]
    assert (np.abs(ratio - 1) <= 1e-13 * (size + 1)).all()


def test_bargaining_has_no_solution_where_gradients_oppose():
    gram = np.array([[1.0, -2.0], [-2.0, 4.0]])
    assert (solvers.bargaining_weights(gram, 1.0) == 0).all()


@settings(max_examples=400)
@given(matrices, st.sampled_from([0.05, 0.4, 0.9, 1.0, 1.7]))
def test_conflict_averse_weights_leave_no_duality_gap(drawn, c):
    rows, _ = drawn
    gram, norms = rows @ rows.T, norms_of(rows)
    count = len(rows)
    weights = solvers.conflict_averse_weights(gram, c)
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


@settings(max_examples=200)
@given(matrices, st.floats(0, 1))
def test_constrained_descent_is_the_nearest_feasible_vector(drawn, tau):
    rows, kind = drawn
    if kind in ("dependent", "duplicate", "ill_conditioned"):
        rows = rows / np.maximum(norms_of(rows), 1e-300)[:, None]
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = solvers.constrained_descent_weights(gram, tau)
    assert weights[0] == 1
    multipliers = weights[1:]
    assert (multipliers >= 0).all()
    direction = weights @ rows
    needed = tau * norms[1:] ** 2
    slack = rows[1:] @ direction - needed
    size = norms[1:] * (weights @ norms) + needed
    if not multipliers.any() and (slack < -1e-9 * size).any():
        # refused: no vector satisfies all constraints, so a combination of them vanishes
        active = norms[1:] > 0
        unit = rows[1:][active] / norms[1:][active][:, None]
        assert np.linalg.norm(solvers.min_norm_point(unit @ unit.T) @ unit) < 1e-5
        return
    assert (slack >= -1e-9 * size).all()
    assert multipliers @ np.abs(slack) <= 1e-9 * (multipliers @ size) + 1e-300


def test_constrained_descent_without_a_feasible_vector_is_the_first_gradient():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    weights = solvers.constrained_descent_weights(rows @ rows.T, 0.1)
    np.testing.assert_array_equal(weights, [1, 0, 0])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_simplex_projection_is_the_nearest_point(values):
    point = np.array(values)
    found = solvers.project_onto_simplex(point)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    # the gradient of the distance is constant where the entry is positive, and larger elsewhere
    gradient = found - point
    least = gradient[found > 0].max()
    assert (gradient >= least - 1e-12).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([-12, -5, 5, 12]))
def test_solutions_do_not_depend_on_the_scale_of_the_gradients(seed, exponent):
    rows = np.random.default_rng(seed).normal(size=(5, 7))
    gram = rows @ rows.T
    scaled = gram * 10.0 ** (2 * exponent)
    for solver in (
        solvers.min_norm_point,
        solvers.dual_cone_projections,
        lambda g: solvers.conflict_averse_weights(g, 0.4),
        lambda g: solvers.bargaining_weights(g, 1.0) * np.sqrt(g[0, 0]),
        lambda g: solvers.bargaining_weights(g, 2.0) * g[0, 0] ** (1 / 3),
        lambda g: solvers.constrained_descent_weights(g, 0.1),
    ):
        np.testing.assert_allclose(solver(scaled), solver(gram), rtol=1e-9, atol=1e-12)


def test_a_matrix_that_is_not_finite_gives_nan():
    gram = torch.tensor([[1.0, torch.inf], [torch.inf, 1.0]])
    assert torch.isnan(solvers.solve(solvers.min_norm_point, gram)).all()


def test_forty_tasks_of_which_many_conflict_are_solved_exactly():
    rows = np.random.default_rng(0).normal(size=(40, 45))
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = solvers.dual_cone_projections(gram)
    assert (weights @ gram >= -1e-12 * norms.max() ** 2 * len(gram)).all()
    nash = solvers.bargaining_weights(gram, 1.0)
    np.testing.assert_allclose(gram @ nash * nash, 1, rtol=1e-11)
