import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mtlkit.weighting._solvers import (
    dual_cone_corrections,
    dual_cone_projections,
    dual_cone_weights,
    min_norm_point,
)
from mtlkit.weighting._solvers.dual_cone import block_pivoting
from mtlkit.weighting._solvers.geometry import nonnegative_least_squares
from tests.weighting.solvers.drawn_gradients import draw, gradients, norms_of, seeds


@settings(max_examples=300)
@given(gradients())
def test_optimality_conditions_hold(rows):
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = dual_cone_projections(gram)
    multipliers = weights - np.eye(len(gram))
    assert (multipliers >= 0).all()
    products = weights @ gram  # of each projection with each gradient
    size = (np.abs(weights) @ norms)[:, None] * norms
    assert (products >= -1e-12 * size).all()
    assert (
        np.abs((multipliers * products).sum(axis=1)) <= 1e-12 * (multipliers * size).sum(axis=1)
    ).all()


@given(seeds, st.integers(2, 5))
def test_projections_equal_those_found_by_trying_every_active_set(seed, count):
    rows = np.random.default_rng(seed).normal(size=(count, count + 1))
    found = dual_cone_projections(rows @ rows.T) @ rows
    for index, row in enumerate(rows):
        candidates = []
        for size in range(count + 1):
            for subset in map(list, itertools.combinations(range(count), size)):
                point = row - np.linalg.pinv(rows[subset]) @ rows[subset] @ row if subset else row
                if (rows @ point >= -1e-12).all():
                    candidates.append(point)
        best = min(candidates, key=lambda point: np.linalg.norm(point - row))
        np.testing.assert_allclose(found[index], best, atol=1e-10)


@given(gradients(), seeds)
def test_a_single_projection_is_one_of_all(rows, seed):
    gram = rows @ rows.T
    index = seed % len(rows)
    one = dual_cone_weights(gram, np.eye(len(rows))[index])
    found = dual_cone_projections(gram)[index]
    size = found @ norms_of(rows)
    np.testing.assert_allclose(one @ rows, found @ rows, atol=1e-10 * size)


@given(gradients(kinds=["plain", "unequal_norms", "duplicate"]), seeds)
def test_corrections_of_a_sum_are_those_of_its_projection(rows, seed):
    norms = norms_of(rows)
    unit = rows / norms[:, None]
    start = np.random.default_rng(seed).normal(size=(3, len(rows)))
    corrections = dual_cone_corrections(unit @ unit.T, start)
    for row, correction in zip(start, corrections, strict=True):
        projected = dual_cone_weights(rows @ rows.T, row / norms) @ rows
        size = np.abs(row).sum()
        np.testing.assert_allclose((row + correction) @ unit, projected, atol=1e-10 * size)


def test_forty_tasks_of_which_many_conflict_are_solved_exactly():
    rows = np.random.default_rng(0).normal(size=(40, 45))
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = dual_cone_projections(gram)
    assert (weights @ gram >= -1e-12 * norms.max() ** 2 * len(gram)).all()


@settings(max_examples=150)
@given(gradients(most=40), st.sampled_from([1e-7, 1e-15]))
def test_rows_that_block_pivoting_has_settled_are_those_of_lawson_and_hanson(rows, rounding):
    norms = norms_of(rows)
    unit = rows / np.where(norms == 0, 1, norms)[:, None]
    values, vectors = np.linalg.eigh(unit @ unit.T)
    values = np.maximum(values, 0) + len(rows) * rounding
    system = np.sqrt(values)[:, None] * vectors.T * (norms > 0)
    targets = -system @ unit @ unit.T
    found, unsettled = block_pivoting(system, targets.T)
    for index in set(range(len(rows))) - set(unsettled.tolist()):
        target = targets[:, index]
        exact, length = nonnegative_least_squares(system, target)
        assert (found[index] >= 0).all()
        distance = np.linalg.norm(system @ found[index] - target)
        assert distance**2 <= length**2 + 1e-12 * target @ target
        # both are within the square root of that of the unique nearest point
        np.testing.assert_allclose(
            system @ found[index], system @ exact, atol=1e-6 * np.linalg.norm(target)
        )


@pytest.mark.parametrize("features", [60, 300])
def test_block_pivoting_settles_all_rows_of_two_hundred_tasks_at_the_rounding_of_float32(features):
    rows = np.random.default_rng(0).normal(size=(200, features))
    unit = rows / norms_of(rows)[:, None]
    values, vectors = np.linalg.eigh(unit @ unit.T)
    values = np.maximum(values, 0)
    roots = np.sqrt(values + 200 * 6e-8)
    _, unsettled = block_pivoting(roots[:, None] * vectors.T, -vectors * (values / roots))
    assert not len(unsettled)


@settings(max_examples=25)
@given(gradients(least=33, most=60))
def test_projections_of_many_tasks_make_no_task_worse(rows):
    gram, norms = rows @ rows.T, norms_of(rows)
    weights = dual_cone_projections(gram)
    size = (np.abs(weights) @ norms)[:, None] * norms
    assert (weights >= np.eye(len(gram))).all()
    assert (weights @ gram >= -1e-12 * size).all()


def noisy(cosines: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    error = np.triu(rng.uniform(-noise, noise, size=cosines.shape), 1)
    return cosines + error + error.T


def weakly_stationary(seed: int, count: int) -> np.ndarray:
    """Unit gradients of which some have a convex combination that vanishes."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, count + 2))
    opposed = rng.integers(2, count + 1)
    rows[opposed - 1] = -rng.uniform(0.1, 1, size=opposed - 1) @ rows[: opposed - 1]
    return rows / norms_of(rows)[:, None]


@pytest.mark.parametrize("tilt", [1e-2, 1e-4, 1e-6])
def test_exact_projection_jumps_where_a_convex_combination_vanishes(tilt):
    def projected(e: float) -> np.ndarray:
        rows = np.array([[1.0, 0.0], [-1.0, e], [0.0, -1.0]])
        return dual_cone_projections(rows @ rows.T, rounding=0.0)[2] @ rows

    np.testing.assert_allclose(projected(0.0), [0, -1], atol=1e-9)
    np.testing.assert_allclose(projected(-tilt), [0, -1], atol=1e-9)
    # for every tilt to the other side, however small, the cone is the origin alone;
    # the Gram matrix knows the square of the tilt to rounding only
    np.testing.assert_allclose(projected(tilt), [0, 0], atol=1e-15 / tilt**2)


def test_a_tilt_that_rounding_hides_moves_nothing():
    rounding = float(np.finfo(np.float32).eps)
    for tilt in (-1e-6, 0.0, 1e-6):
        rows = np.array([[1.0, 0.0], [-1.0, tilt], [0.0, -1.0]])
        found = dual_cone_projections(rows @ rows.T, rounding)[2] @ rows
        np.testing.assert_allclose(found, [0, -1], atol=1e-5)


@settings(max_examples=300)
@given(seeds, st.integers(2, 8), st.sampled_from([1e-3, 1e-7, 1e-11]), st.booleans())
def test_noise_of_the_size_of_rounding_moves_little(seed, count, rounding, stationary):
    unit = weakly_stationary(seed, count) if stationary else draw(seed, count, "duplicate")
    unit = unit / norms_of(unit)[:, None]
    cosines, identity = unit @ unit.T, np.eye(count)
    # half of the noise, because what it makes negative is cut off
    other = noisy(cosines, rounding / 2, np.random.default_rng(seed))
    found = identity + dual_cone_corrections(cosines, identity, rounding)
    change = identity + dual_cone_corrections(other, identity, rounding) - found
    bound = np.sqrt(count * rounding) * norms_of(found)
    assert (norms_of(change @ unit) <= bound * (1 + 1e-6)).all()


@settings(max_examples=100)
@given(seeds, st.integers(2, 6))
def test_noise_of_float32_moves_upgrad_by_less_than_a_thousandth_at_weakly_stationary_gradients(
    seed, count
):
    rounding = float(np.finfo(np.float32).eps)
    unit = weakly_stationary(seed, count)
    cosines = unit @ unit.T
    weights = dual_cone_projections(cosines, rounding)
    assume(norms_of(weights).max() < 10)
    other = dual_cone_projections(noisy(cosines, rounding / 2, np.random.default_rng(seed)), rounding)
    assert norms_of((other - weights) @ unit).max() <= 1e-3


@given(seeds, st.integers(2, 8))
def test_rounding_changes_a_well_posed_projection_by_no_more(seed, count):
    unit = np.random.default_rng(seed).normal(size=(count, 4 * count))
    unit = unit / norms_of(unit)[:, None]
    cosines, rounding = unit @ unit.T, float(np.finfo(np.float32).eps)
    exact = dual_cone_projections(cosines, rounding=0.0)
    change = dual_cone_projections(cosines, rounding) - exact
    least = np.linalg.eigvalsh(cosines)[0]
    bound = count * rounding * norms_of(exact - np.eye(count)) / np.sqrt(least)
    assert (norms_of(change @ unit) <= bound + 1e-12).all()


@settings(max_examples=200)
@given(seeds, st.integers(2, 8), st.sampled_from([1e-5, 1e-7, 1e-9]))
def test_noise_moves_the_exact_projection_little_where_no_convex_combination_vanishes(
    seed, count, noise
):
    unit = draw(seed, count, "duplicate" if seed % 2 else "plain")
    unit = unit / norms_of(unit)[:, None]
    cosines, identity = unit @ unit.T, np.eye(count)
    shortest = np.linalg.norm(min_norm_point(cosines) @ unit)
    assume(shortest**2 > 100 * count * noise)
    # noise may leave a matrix that no gradients have; the nearest that some have is the solvers'
    values, vectors = np.linalg.eigh(noisy(cosines, noise, np.random.default_rng(seed)))
    other = (vectors * np.maximum(values, 0)) @ vectors.T
    change = dual_cone_corrections(other, identity) - dual_cone_corrections(cosines, identity)
    worst = np.abs(other - cosines).max()
    bound = np.sqrt(2 * worst) * (1 + 1 / np.sqrt(shortest**2 - worst))
    assert (norms_of(change @ unit) <= bound).all()
