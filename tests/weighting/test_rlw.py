from collections import Counter

import pytest
import torch

import mtlkit

DISTRIBUTIONS = ("normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli")


def draws(spec, tasks, count):
    method = mtlkit.create_method(spec, tasks)
    found = []
    for _ in range(count):
        losses = [torch.tensor(1.0, requires_grad=True) for _ in range(tasks)]
        method.total(losses).backward()
        found.append(torch.stack([loss.grad for loss in losses]))
    return torch.stack(found)


@pytest.mark.parametrize("dist", ["normal", "uniform", "dirichlet", "constrained_bernoulli"])
def test_weights_lie_on_the_simplex_with_equal_means(dist):
    weights = draws(f"rlw(dist={dist})", 4, 600)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(600))
    # four standard errors of the mean of a number in [0, 1] with deviation below 0.44
    torch.testing.assert_close(weights.mean(dim=0), torch.full((4,), 0.25), atol=0.07, rtol=0)
    assert len({tuple(row.tolist()) for row in weights}) > 3


def test_normal_weights_are_the_softmax_of_standard_normal_numbers():
    logs = draws("rlw", 2, 1500).log()
    difference = logs[:, 0] - logs[:, 1]  # N(0, 2)
    assert difference.mean().abs() < 0.15
    assert difference.var().item() == pytest.approx(2, rel=0.15)


def test_dirichlet_weights_of_two_tasks_are_uniform():
    share = draws("rlw(dist=dirichlet)", 2, 1500)[:, 0].sort().values
    expected = (torch.arange(1500) + 0.5) / 1500
    assert (share - expected).abs().max() < 0.05  # Kolmogorov and Smirnov at 0.1 %


def test_bernoulli_masks_are_equally_frequent_and_never_empty():
    masks = Counter(tuple(row.tolist()) for row in draws("rlw(dist=bernoulli)", 3, 1400))
    assert len(masks) == 7
    assert (0.0, 0.0, 0.0) not in masks
    chi_square = sum((found - 200) ** 2 / 200 for found in masks.values())
    assert chi_square < 22.5  # 6 degrees of freedom, 0.1 %


def test_constrained_bernoulli_has_one_task_at_a_time():
    weights = draws("rlw(dist=constrained_bernoulli)", 3, 300)
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert (weights.sum(dim=1) == 1).all()


@pytest.mark.parametrize("dist", DISTRIBUTIONS)
def test_a_seed_repeats_the_draws_and_another_does_not(dist):
    assert torch.equal(
        draws(f"rlw(dist={dist}, seed=3)", 5, 12), draws(f"rlw(dist={dist}, seed=3)", 5, 12)
    )
    assert not torch.equal(
        draws(f"rlw(dist={dist}, seed=3)", 5, 12), draws(f"rlw(dist={dist}, seed=4)", 5, 12)
    )


@pytest.mark.parametrize("dist", DISTRIBUTIONS)
def test_a_single_task_has_weight_one(dist):
    assert (draws(f"rlw(dist={dist})", 1, 10) == 1).all()
