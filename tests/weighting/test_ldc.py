import pytest
import torch

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    method = mtlkit.create_method("ldc(penalty=0.1)", 3)
    # relative losses 1, weights 1/3, no differences
    total, weights = step(method, [1.0, 2.0, 4.0])
    assert weights == pytest.approx([1 / 3, 1 / 6, 1 / 12])
    assert total == pytest.approx(1)
    # relative losses 1, 0.5, 0.75: signs + and -, slopes 1.1, 1 - 0.1 - 0.1, 1.1
    total, weights = step(method, [1.0, 1.0, 3.0])
    assert weights == pytest.approx([1.1 / 3, 0.8 / 6, 1.1 / 12])
    assert total == pytest.approx((1 + 0.5 + 0.75 + 0.1 * (0.5 + 0.25)) / 3)


def test_thirty_steps_equal_autograd_through_the_objective():
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(30, 4, generator=generator, dtype=torch.float64) + 0.1
    method = mtlkit.create_method("ldc(penalty=0.07)", 4).double()
    ours = torch.optim.Adam(method.parameters(), lr=0.1)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([theta], lr=0.1)
    for row in losses:
        given = row.clone().requires_grad_()
        weighted = theta.softmax(dim=0) * given / losses[0]
        objective = weighted.sum() + 0.07 * (weighted[1:] - weighted[:-1]).abs().sum()
        theirs.zero_grad()
        objective.backward()
        theirs.step()
        ours.zero_grad()
        total, weights = step(method, row.tolist())
        ours.step()
        assert total == pytest.approx(objective.item())
        assert weights == pytest.approx(given.grad.tolist())
        torch.testing.assert_close(method.parts[0].state_dict()["logits"], theta.detach())


def test_a_penalty_alone_brings_the_weighted_losses_together():
    method = mtlkit.create_method("ldc(penalty=100.0)", 3)
    optimizer = torch.optim.SGD(method.parameters(), lr=1e-3)
    step(method, [1.0, 1.0, 1.0])
    for _ in range(500):
        optimizer.zero_grad()
        step(method, [1.0, 0.5, 0.25])
        optimizer.step()
    weighted = method.parts[0].state_dict()["logits"].softmax(dim=0) * torch.tensor([1.0, 0.5, 0.25])
    assert (weighted.max() - weighted.min()) < 0.03  # 0.25 at first
