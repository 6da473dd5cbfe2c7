import copy

import pytest
import torch
from torch import nn

import mtlkit
from tests.weighting.strategies import drawn


def test_worked_example():
    method = mtlkit.create_method("adatask(beta1=0.5, beta2=0.75, eps=0.0)", 2)
    # first step: the signs
    merged = method.combine(torch.tensor([[6.0, -1.0], [2.0, 0.0]], dtype=torch.float64))
    assert merged.tolist() == pytest.approx([2.0, -1.0])
    # m = 0.5 * 3 + 0.5 * 2 = 2.5, 0.5 * -0.5 + 0.5 * 4 = 1.75 and 0.5 * 1 = 0.5, divided by 0.75;
    # v = 0.75 * 9 + 0.25 * 4 = 7.75, 0.75 * 0.25 + 0.25 * 16 = 4.1875 and 0.75 * 1, divided by 0.4375
    merged = method.combine(torch.tensor([[2.0, 4.0], [0.0, 0.0]], dtype=torch.float64))
    factor = 0.4375**0.5 / 0.75
    expected = [factor * (2.5 / 7.75**0.5 + 0.5 / 0.75**0.5), factor * 1.75 / 4.1875**0.5]
    assert merged.tolist() == pytest.approx(expected)


def adam_steps(rows, **options):
    """How far torch's own Adam moves on these gradients, at a learning rate of one."""
    parameter = nn.Parameter(torch.zeros(rows[0].shape, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=1.0, **options)
    moves = []
    for row in rows:
        before = parameter.detach().clone()
        parameter.grad = row.clone()
        optimizer.step()
        moves.append(before - parameter.detach())
    return moves


def test_thirty_steps_are_the_sum_of_one_adam_per_task():
    sizes = torch.tensor([[0.01], [1.0], [100.0]], dtype=torch.float64)
    rows = torch.stack([drawn(seed, 3, 20) * sizes for seed in range(30)])
    method = mtlkit.create_method("adatask(beta1=0.8, beta2=0.99)", 3)
    per_task = [adam_steps(rows[:, k], betas=(0.8, 0.99)) for k in range(3)]
    for given, *moves in zip(rows, *per_task, strict=True):
        torch.testing.assert_close(method.combine(given), sum(moves), rtol=1e-9, atol=1e-12)


def test_a_network_under_sgd_trains_as_under_adam_if_there_is_one_task():
    torch.manual_seed(0)
    backbone, head = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
    twin = copy.deepcopy(backbone)
    method = mtlkit.create_method("adatask", 1, shared=backbone)
    ours = torch.optim.SGD(backbone.parameters(), lr=0.01)
    theirs = torch.optim.Adam(twin.parameters(), lr=0.01)
    for _ in range(10):
        x = torch.randn(8, 3, dtype=torch.float64)
        ours.zero_grad()
        (view,) = method(backbone(x).tanh())
        method.total([head(view).square().mean()]).backward()
        ours.step()
        theirs.zero_grad()
        head(twin(x).tanh()).square().mean().backward()
        theirs.step()
    torch.testing.assert_close(backbone.weight, twin.weight, rtol=1e-6, atol=1e-9)


def test_the_size_of_a_task_s_gradients_does_not_matter():
    rows = [drawn(seed, 2, 10) for seed in range(5)]
    one, other = (mtlkit.create_method("adatask(eps=0.0)", 2) for _ in range(2))
    for row in rows:
        scaled = row * torch.tensor([[1e6], [1e-3]], dtype=torch.float64)
        torch.testing.assert_close(other.combine(scaled), one.combine(row))
