import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def leaves(values):
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_the_stationary_point_weighs_each_loss_by_half_its_inverse(values):
    method = mtlkit.create_method("uw", len(values)).double()
    with torch.no_grad():
        method.parts[0].log_variances.copy_(torch.tensor(values).double().log())
    losses = leaves(values)
    total = method.total(losses)
    total.backward()
    assert method.parts[0].log_variances.grad.abs().max() < 1e-6
    for loss, value in zip(losses, values, strict=True):
        assert loss.grad.item() == pytest.approx(0.5 / value, rel=1e-6)
    expected = 0.5 * sum(1 + math.log(value) for value in values)
    assert total.item() == pytest.approx(expected, abs=1e-5)


def test_numbered_tasks_may_be_named_by_numbers():
    method = mtlkit.create_method("uw(classification=[1])", 2)
    assert method.parts[0].factors.tolist() == [0.5, 1.0]


def test_gradient_descent_on_the_variances_finds_the_stationary_point():
    method = mtlkit.create_method("uw(classification=[a])", ["a", "b"])
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        method.total([torch.tensor(0.3), torch.tensor(4.0)]).backward()
        optimizer.step()
    variances = method.parts[0].log_variances.exp()
    torch.testing.assert_close(variances, torch.tensor([2 * 0.3, 4.0]), rtol=1e-4, atol=0)


def test_worked_example_with_a_classification_task():
    method = mtlkit.create_method("uw(classification=[a])", ["a", "b"])
    with torch.no_grad():
        method.parts[0].log_variances.copy_(torch.tensor([math.log(2.0), math.log(4.0)]))
    losses = leaves([3.0, 8.0])
    total = method.total(losses)
    total.backward()
    # 3/2 + log(2)/2 + 8/(2*4) + log(4)/2
    assert total.item() == pytest.approx(2.5 + 1.5 * math.log(2), rel=1e-6)
    assert [loss.grad.item() for loss in losses] == pytest.approx([0.5, 0.125])
    # d/ds: -3/2 + 1/2 and -8/8 + 1/2
    assert method.parts[0].log_variances.grad.tolist() == pytest.approx([-1.0, -0.5])


def test_an_absent_task_brings_no_gradient_to_its_variance():
    method = mtlkit.create_method("uw", ["a", "b"])
    method.total({"b": torch.tensor(3.0)}).backward()
    assert method.parts[0].log_variances.grad.tolist() == [0.0, -1.0]


def test_values_and_gradients_equal_torchjd():
    from torchjd.scalarization import UW

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 8
        theirs = UW(count).double()
        ours = mtlkit.create_method("uw", count).double()
        with torch.no_grad():
            theirs.log_var.copy_(torch.randn(count, generator=generator))
            ours.parts[0].log_variances.copy_(theirs.log_var)
        values = torch.rand(count, generator=generator, dtype=torch.float64) * 10
        stacked = values.clone().requires_grad_()
        expected = theirs(stacked)
        expected.backward()
        losses = leaves(values.tolist())
        total = ours.total(losses)
        total.backward()
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(torch.stack([loss.grad for loss in losses]), stacked.grad)
        torch.testing.assert_close(ours.parts[0].log_variances.grad, theirs.log_var.grad)
