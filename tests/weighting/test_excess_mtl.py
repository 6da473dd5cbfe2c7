import math

import pytest
import torch

import mtlkit


def diagonal(*norms: float) -> torch.Tensor:
    return torch.diag(torch.tensor(norms, dtype=torch.float64))


def test_weights_follow_the_excess_risks_worked_by_hand():
    method = mtlkit.create_method("excess_mtl(eta=0.5)", 2)
    torch.testing.assert_close(method.combine(diagonal(1, 2)), torch.tensor([0.5, 1.0]).double())
    # baselines 1 and 2; now 4 / sqrt(1 + 4) and 4 / sqrt(4 + 4), relative to these
    odds = math.exp(0.5 * (4 / math.sqrt(5) / 1 - 4 / math.sqrt(8) / 2))
    expected = torch.tensor([odds / (1 + odds), 1 / (1 + odds)], dtype=torch.float64)
    torch.testing.assert_close(method.combine(diagonal(2, 2)), 2 * expected)


def test_warmup_averages_the_baseline_with_equal_weights():
    method = mtlkit.create_method("excess_mtl(warmup=2)", 2)
    for _ in range(2):
        torch.testing.assert_close(method.combine(diagonal(1, 2)), torch.tensor([0.5, 1.0]).double())
    # excess risks 1 and 1 / sqrt(2) of the first task, twice that of the second
    torch.testing.assert_close(
        method.parts[0].baseline, (1 + 0.5**0.5) * torch.tensor([1.0, 2.0]).double()
    )
    # a task that is as far as ever against one that has converged
    weights = method.combine(diagonal(1, 0.01))
    assert weights[0] > 0.5


def test_a_task_that_stays_far_from_its_optimum_gains_weight():
    method = mtlkit.create_method("excess_mtl(eta=0.1)", 2)
    for step in range(20):
        method.combine(diagonal(1, 0.7**step))
    assert method.parts[0].w[0] > 0.6


def test_a_task_that_comes_late_stops_the_others_for_its_warmup():
    method = mtlkit.create_method("excess_mtl(warmup=1)", 3)

    def step(*factors: float | None) -> torch.Tensor:
        z = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
        views = method(z)
        losses = [None if f is None else f * views[k][0, k] for k, f in enumerate(factors)]
        method.total(losses).backward()
        return z.grad[0]

    torch.testing.assert_close(step(1, 2, None), torch.tensor([0.5, 1.0, 0.0]).double())
    moved = step(2, 2, None)
    assert moved[0] > moved[1] > 0
    shares = method.parts[0].w.clone()
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0).double())
    assert shares[2] == pytest.approx(1 / 3)
    torch.testing.assert_close(step(1, 1, 1), shares)
    assert method.parts[0].baseline[2] == 1
    assert not torch.equal(step(1, 1, 1), shares)


def test_agrees_with_torchjd_where_a_gradient_has_one_coordinate():
    from torchjd.aggregation import ExcessMTL

    # with more, its Hessian has one entry per coordinate; ours is one number per task
    generator = torch.Generator().manual_seed(0)
    for tasks in (2, 3, 5, 8):
        ours = mtlkit.create_method("excess_mtl(eta=0.1)", tasks)
        theirs = ExcessMTL(robust_step_size=0.1, n_warmup_steps=1)
        for _ in range(50):
            rows = torch.randn(tasks, 1, dtype=torch.float64, generator=generator) + 3
            torch.testing.assert_close(ours.combine(rows), theirs(rows), rtol=1e-5, atol=1e-6)
