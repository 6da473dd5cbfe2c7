"""The paper's illustrative problems: what holds at every seed, and what at some of the first ones."""

import json

import pytest
import torch

from benchmarks.paper.toy import shares
from benchmarks.paper.toy.problems import (
    AUTHORS,
    CONVEX,
    avocado,
    distances,
    nonconvex,
    run_logistic,
    run_regression,
)


def test_only_rotograd_can_reach_both_optima_of_the_convex_problem():
    ends = {
        name: [max(distances(CONVEX, run_regression(CONVEX, name, seed, AUTHORS))) for seed in range(4)]
        for name in ("sum", "rotograd")
    }
    assert min(ends["sum"]) > 0.9
    assert min(ends["rotograd"]) < shares.NEAR


@pytest.mark.slow
def test_where_rotograd_learns_two_opposite_tasks_its_rotations_are_opposite():
    vanilla = run_logistic("sum", 0)
    assert min(vanilla.accuracy(0), vanilla.accuracy(1)) < 0.5
    runs = [run_logistic("rotograd", seed) for seed in range(4)]
    solved = [run for run in runs if min(run.accuracy(0), run.accuracy(1)) > shares.CORRECT]
    assert solved
    for run in solved:
        # one rotation relative to the other is a half turn
        relative = run.rotations[0].T @ run.rotations[1]
        assert (relative + torch.eye(2)).abs().max() < 0.3


def test_shares_are_kept_and_only_what_is_missing_is_run(tmp_path, monkeypatch):
    calls = []

    def one_case():
        yield "avocado", "sum", lambda seed: calls.append(seed) or [0.05, 0.05 if seed == 1 else 0.5]

    monkeypatch.setattr(shares, "cases", one_case)
    found = shares.measure(tmp_path, seeds=4)["avocado"]["sum"]
    assert (found["solved"], found["share"]) == (1, 0.25)
    # the exact interval of one success in four trials
    assert found["low"] == pytest.approx(0.0063, abs=1e-4)
    assert found["high"] == pytest.approx(0.8059, abs=1e-4)
    assert shares.measure(tmp_path, seeds=4) == json.loads((tmp_path / "shares.json").read_text())
    assert calls == [0, 1, 2, 3]


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
