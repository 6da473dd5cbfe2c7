import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn

seeds = st.integers(0, 2**32 - 1)


def merged(rows: torch.Tensor, c: float) -> torch.Tensor:
    return mtlkit.create_method("cagrad", len(rows), c=c).combine(rows)


def test_orthogonal_gradients_of_one_length_give_a_longer_mean():
    weights = mtlkit.create_method("cagrad(c=0.5)", 2).weights(torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(weights, torch.full((2,), 0.75, dtype=torch.float64))


def test_opposite_gradients_move_as_little_as_the_ball_allows():
    rows = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)  # mean 0.25
    assert merged(rows, 0.5).item() == pytest.approx(0.125)
    # the ball reaches zero, where no task is made worse; the nearest such vector is zero itself
    assert merged(rows, 1.5).item() == pytest.approx(0, abs=1e-15)


def test_c_of_zero_is_the_mean():
    rows = drawn(0, 3, 5)
    torch.testing.assert_close(merged(rows, 0.0), rows.mean(dim=0))


@given(seeds, st.integers(1, 6), st.sampled_from([0.1, 0.4, 0.9, 1.5]))
def test_merged_gradient_stays_within_its_distance_of_the_mean(seed, tasks, c):
    rows = drawn(seed, tasks, 4)
    mean = rows.mean(dim=0)
    assert (merged(rows, c) - mean).norm() <= c * mean.norm() * (1 + 1e-9)


@settings(max_examples=30)
@given(seeds, st.sampled_from([0.2, 0.5, 0.8]))
def test_optimum_is_that_of_a_fine_grid_over_the_ball(seed, c):
    rows = drawn(seed, 3, 2)
    mean = rows.mean(dim=0)
    angles = torch.linspace(0, 2 * torch.pi, 4001, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    radii = torch.linspace(0, 1, 11, dtype=torch.float64)
    ball = mean + (radii[:, None, None] * circle * c * mean.norm()).reshape(-1, 2)
    best = (ball @ rows.T).min(dim=1).values.max()
    found = (rows @ merged(rows, c)).min()
    size = rows.norm(dim=1).max() * mean.norm()
    assert found >= best - 1e-12 * size
    assert found <= best + 1e-2 * size


@given(seeds, st.integers(2, 5), st.sampled_from([0.3, 0.7]))
def test_optimum_is_that_of_the_dual_over_many_points_of_the_simplex(seed, tasks, c):
    rows = drawn(seed, tasks, 6)
    mean = rows.mean(dim=0)
    points = torch.distributions.Dirichlet(torch.ones(tasks, dtype=torch.float64)).sample((2000,))
    hull = points @ rows
    dual = hull @ mean + c * mean.norm() * hull.norm(dim=1)
    found = (rows @ merged(rows, c)).min()
    assert found <= dual.min() + 1e-12
    # strong duality: the points of the simplex come close to the optimum from above
    assert found >= dual.min() - 0.3 * rows.norm(dim=1).max() * mean.norm()


def test_agrees_with_torchjd_on_drawn_matrices():
    pytest.importorskip("cvxpy")
    pytest.importorskip("clarabel")
    from torchjd.aggregation import CAGrad

    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = drawn(int(rng.integers(2**32)), int(rng.integers(2, 8)), 10)
        c = float(rng.choice([0.2, 0.5, 0.9]))
        # its conic solver stops at about 1e-8, relative to the Gram matrix
        torch.testing.assert_close(merged(rows, c), CAGrad(c)(rows), rtol=1e-2, atol=1e-3)
