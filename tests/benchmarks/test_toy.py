"""The claims that the paper makes with its illustrative problems."""

import pytest
import torch

from benchmarks.paper.toy.plots import distances
from benchmarks.paper.toy.problems import (
    CONVEX,
    NONCONVEX,
    avocado,
    nonconvex,
    run_logistic,
    run_regression,
)


def test_rotograd_reaches_both_optima_of_the_convex_problem_and_vanilla_neither():
    assert max(distances(CONVEX, run_regression(CONVEX, "rotograd"))) < 0.05
    assert min(distances(CONVEX, run_regression(CONVEX, "sum"))) > 0.9


def test_rotograd_reaches_both_optima_of_the_nonconvex_problem_and_vanilla_only_one():
    assert max(distances(NONCONVEX, run_regression(NONCONVEX, "rotograd"))) < 0.1
    assert max(distances(NONCONVEX, run_regression(NONCONVEX, "sum"))) > 2


def test_rotograd_learns_two_opposite_tasks_by_opposite_rotations():
    ours, vanilla = run_logistic("rotograd"), run_logistic("sum")
    assert min(ours.accuracy(0), ours.accuracy(1)) > 0.9
    assert min(vanilla.accuracy(0), vanilla.accuracy(1)) < 0.5
    assert (ours.rotations[0] - ours.rotations[1].T).abs().max() < 0.2
    assert (ours.rotations[0] - torch.eye(2)).abs().max() > 0.5


@pytest.mark.parametrize(("loss", "optimum"), [(avocado, (0.5, 0.0)), (nonconvex, (-0.75, -0.75))])
def test_losses_are_least_at_their_optimum(loss, optimum):
    plane = torch.cartesian_prod(torch.linspace(-3, 3, 121), torch.linspace(-3, 3, 121))
    best = plane[loss(plane, 0.5).argmin()]
    assert (best - torch.tensor(optimum)).abs().max() < 0.03


def test_the_nonconvex_loss_is_the_papers_formula_away_from_its_pole():
    x, y, s = torch.tensor(0.4), torch.tensor(-1.2), 1.0
    u, v = x + 1.5 * s, y + 1.5 * s
    expected = -torch.sin(3 * x + 4.5 * s) / u - torch.sin(3 * y + 4.5 * s) / v + u.abs() + v.abs()
    assert torch.allclose(nonconvex(torch.stack([x, y]), s), expected, atol=1e-5)
