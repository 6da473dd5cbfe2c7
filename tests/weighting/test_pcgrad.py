"""PCGrad against its paper's algorithm and TorchJD."""

import numpy as np
import torch
from hypothesis import given, settings
from torchjd import aggregation

import mtlkit
from mtlkit.engine.randomness import random_orders
from tests.weighting.strategies import gradients


def by_the_paper(rows: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Algorithm 1, on the vectors themselves."""
    projected = rows.copy()
    for i in range(len(rows)):
        for j in orders[i]:
            product = projected[i] @ rows[j]
            if product < 0:
                projected[i] -= product / (rows[j] @ rows[j]) * rows[j]
    return projected.sum(axis=0)


def test_two_conflicting_tasks_by_hand():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    # <g1, g2> = -1: g1' = g1 + g2/2 = (1/2, 1/2), g2' = g2 + g1 = (0, 1)
    merged = mtlkit.create_method("pcgrad", 2).combine(rows)
    torch.testing.assert_close(merged, torch.tensor([0.5, 1.5]))


def test_tasks_that_agree_are_added():
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    assert mtlkit.create_method("pcgrad", 3).combine(rows).tolist() == [2.0, 3.0]


@settings(max_examples=200)
@given(gradients())
def test_it_is_the_papers_algorithm_in_its_own_random_order(rows):
    method = mtlkit.create_method("pcgrad", len(rows))
    for _ in range(2):
        orders = random_orders(method.parts[0].seed, method.parts[0].draws, len(rows))
        expected = by_the_paper(rows.numpy(), orders.numpy())
        torch.testing.assert_close(method.combine(rows), torch.from_numpy(expected))


@settings(max_examples=200)
@given(gradients())
def test_it_equals_torchjd_given_the_same_orders(rows):
    method = mtlkit.create_method("pcgrad", len(rows))
    # it passes over the task itself, wherever that is in the order
    drawn = random_orders(method.parts[0].seed, method.parts[0].draws, len(rows)).tolist()
    orders = iter([torch.tensor([i, *others]) for i, others in enumerate(drawn)])
    original = torch.randperm
    try:
        torch.randperm = lambda count, **_: next(orders)
        expected = aggregation.PCGrad()(rows)
    finally:
        torch.randperm = original
    torch.testing.assert_close(method.combine(rows), expected)


def test_orders_change_from_step_to_step_and_with_the_seed():
    rows = torch.randn(6, 4)
    method = mtlkit.create_method("pcgrad", 6)
    results = torch.stack([method.combine(rows) for _ in range(5)])
    assert len(torch.unique(results, dim=0)) > 1
    other = mtlkit.create_method("pcgrad(seed=1)", 6)
    assert not torch.equal(other.combine(rows), results[0])


def test_a_task_is_not_projected_onto_itself_when_rounding_makes_it_negative():
    rows = torch.tensor([[1e-20, 1.0], [1e-20, -1.0]])
    merged = mtlkit.create_method("pcgrad", 2).combine(rows)
    assert torch.isfinite(merged).all()
    assert merged.norm() < 1e-6
