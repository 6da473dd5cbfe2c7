import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from mtlkit.engine.randomness import random_orders
from tests.weighting.strategies import drawn


def test_first_step_removes_conflicts_as_pcgrad_does():
    gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    weights = mtlkit.create_method("gradvac", 2).weights(gram)
    torch.testing.assert_close(weights, torch.full((2,), 1.5, dtype=torch.float64))


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_first_step_is_pcgrad_with_the_same_orders(seed, tasks):
    rows = drawn(seed, tasks, 5)
    ours = mtlkit.create_method("gradvac(seed=3)", tasks).combine(rows)
    torch.testing.assert_close(ours, mtlkit.create_method("pcgrad(seed=3)", tasks).combine(rows))


def test_later_steps_restore_the_average_cosine():
    method = mtlkit.create_method("gradvac(beta=0.5)", 2)
    orthogonal_to_conflict = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    method.combine(orthogonal_to_conflict)
    # both averages moved half of the way from 0 to the cosine 0.6
    torch.testing.assert_close(
        method.parts[0].phi_hat, torch.tensor([[0, 0.3], [0.3, 0]], dtype=torch.float64)
    )
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    merged = method.combine(rows)
    # each is given so much of the other that their cosine is 0.3: tan = 0.3 / sqrt(1 - 0.09)
    tangent = 0.3 / 0.91**0.5
    expected = torch.tensor([1 + 2 * tangent, 2 + tangent], dtype=torch.float64)
    torch.testing.assert_close(merged, expected)
    torch.testing.assert_close(method.parts[0].phi_hat[0, 1].item(), 0.15)


@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_two_tasks_agree_with_torchjd_over_many_steps(seed):
    from torchjd.aggregation import GradVac

    ours, theirs = mtlkit.create_method("gradvac(beta=0.5)", 2), GradVac(beta=0.5, eps=0.0)
    for step in range(5):
        rows = drawn(seed + step, 2, 6)
        torch.testing.assert_close(ours.combine(rows), theirs(rows), rtol=1e-6, atol=1e-8)


def vaccinate(
    rows: torch.Tensor, averages: torch.Tensor, orders: torch.Tensor, beta: float
) -> torch.Tensor:
    """The paper's loop on the gradients themselves; changes ``averages``."""
    total = torch.zeros_like(rows[0])
    for i, order in enumerate(orders.tolist()):
        turned = rows[i]
        for j in order:
            cosine = torch.cosine_similarity(turned, rows[j], dim=0, eps=0.0)
            goal = averages[i, j].clone()
            if cosine < goal:
                sine, goal_sine = (1 - cosine**2).sqrt(), (1 - goal**2).sqrt()
                factor = (
                    turned.norm() * (goal * sine - cosine * goal_sine) / (rows[j].norm() * goal_sine)
                )
                turned = turned + factor * rows[j]
            averages[i, j] = (1 - beta) * goal + beta * cosine
        total = total + turned
    return total


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.sampled_from([0.01, 0.5, 1.0]))
def test_is_the_papers_loop_over_many_steps(seed, tasks, beta):
    method = mtlkit.create_method(f"gradvac(beta={beta})", tasks)
    averages = torch.zeros(tasks, tasks, dtype=torch.float64)
    for step in range(5):
        rows = drawn(seed + step, tasks, 6)
        orders = random_orders(0, torch.tensor(step), tasks)
        expected = vaccinate(rows, averages, orders, beta)
        torch.testing.assert_close(method.combine(rows), expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(method.parts[0].phi_hat, averages, rtol=1e-6, atol=1e-8)


def test_averages_move_also_where_nothing_is_turned():
    method = mtlkit.create_method("gradvac(beta=0.5)", 2)
    aligned = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(method.combine(aligned), aligned.sum(dim=0))
    assert method.parts[0].phi_hat[0, 1] == pytest.approx(0.4)


def test_agrees_with_torchjd_on_drawn_matrices_of_two_tasks():
    from torchjd.aggregation import GradVac  # with more, its orders are drawn from the global generator

    ours, theirs = mtlkit.create_method("gradvac(beta=0.1)", 2), GradVac(beta=0.1, eps=0.0)
    for seed in range(200):
        rows = drawn(seed, 2, 6)
        torch.testing.assert_close(ours.combine(rows), theirs(rows), rtol=1e-6, atol=1e-8)


def test_identical_tasks_are_unchanged_however_long_they_are_seen():
    method = mtlkit.create_method("gradvac(beta=0.9)", 3)
    for seed in range(30):
        row = drawn(seed, 1, 6).float()
        torch.testing.assert_close(method.combine(row.repeat(3, 1)), 3 * row[0])
