"""GradNorm: its gradient by hand and by autograd on the paper's loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from tests.networks import SmallNet


def run_step(method, norms, losses):
    """One step in which task k has the given gradient norm and loss."""
    z = torch.zeros(1, len(norms), requires_grad=True)
    views = method(z * 1)
    values = []
    for k, (view, norm, loss) in enumerate(zip(views, norms, losses, strict=True)):
        values.append(view[0, k] * norm + loss)
    for parameter in method.parameters():
        parameter.grad = None
    method.total(values).backward()
    return method.task_weights.grad


def test_two_steps_by_hand():
    method = mtlkit.create_method("gradnorm(alpha=1.0)", 2)
    # step 1: rates are 1: the target is the mean norm, (3 + 1) / 2 = 2: signs + and -
    assert run_step(method, [3.0, 1.0], [2.0, 4.0]).tolist() == [3.0, -1.0]
    # step 2: losses 1 and 4: rates 1/2 and 1, mean 3/4, relative 2/3 and 4/3;
    # norms 3 and 2.2, mean 2.6, targets 1.733 and 3.467: signs + and -
    gradient = run_step(method, [3.0, 2.2], [1.0, 4.0])
    torch.testing.assert_close(gradient, torch.tensor([3.0, -2.2]))
    assert method.initial_losses.tolist() == [2.0, 4.0]


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.floats(0, 2))
def test_its_gradient_is_autograds_on_the_papers_loss(seed, alpha):
    generator = torch.Generator().manual_seed(seed)
    norms = (torch.rand(4, generator=generator) + 0.1).tolist()
    start = (torch.rand(4, generator=generator) + 0.1).tolist()
    now = (torch.rand(4, generator=generator) + 0.1).tolist()
    method = mtlkit.create_method("gradnorm", 4, alpha=alpha)
    run_step(method, norms, start)
    with torch.no_grad():
        method.task_weights.copy_(torch.rand(4, generator=generator) + 0.1)
    gradient = run_step(method, norms, now)
    weights = method.task_weights.detach().clone().requires_grad_()
    scaled = weights * torch.tensor(norms)
    rates = torch.tensor(now) / torch.tensor(start)
    target = (scaled.mean() * (rates / rates.mean()) ** alpha).detach()
    (scaled - target).abs().sum().backward()
    torch.testing.assert_close(gradient, weights.grad, rtol=1e-4, atol=1e-5)


def test_weights_sum_to_the_number_of_tasks_and_move_towards_balance():
    net = SmallNet("gradnorm(alpha=0.0)")
    optimizer = torch.optim.Adam(mtlkit.param_groups(net, lr=1e-4, method_lr=0.02))
    x = torch.randn(8, 4)
    spread = []
    for _ in range(150):
        optimizer.zero_grad()
        net(x).backward()
        stats = net.method.stats
        scaled = stats.weights * stats.norms
        spread.append(float(scaled.max() / scaled.min()))
        torch.testing.assert_close(stats.weights.sum(), torch.tensor(3.0))
        optimizer.step()
    assert spread[-1] < 1.2 < spread[0]


def test_a_weight_driven_below_zero_is_set_to_zero():
    method = mtlkit.create_method("gradnorm", 2)
    with torch.no_grad():
        method.task_weights.copy_(torch.tensor([-1.0, 3.0]))
    method(torch.ones(1, 2, requires_grad=True))
    assert method.task_weights.tolist() == [0.0, 2.0]


def test_it_needs_the_losses():
    method = mtlkit.create_method("gradnorm", 2)
    z = torch.ones(1, 2, requires_grad=True)
    first, second = method(z)
    with pytest.raises(mtlkit.MtlkitError, match="call backward"):
        (first.sum() + second.sum()).backward()
