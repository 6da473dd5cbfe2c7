"""GradNorm: its gradient by hand and by autograd on the paper's loss, and whole trainings."""

import copy

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
    return method.parts[0].task_weights.grad


def test_two_steps_by_hand():
    method = mtlkit.create_method("gradnorm(alpha=1.0)", 2)
    # step 1: rates are 1: the target is the mean norm, (3 + 1) / 2 = 2: signs + and -
    assert run_step(method, [3.0, 1.0], [2.0, 4.0]).tolist() == [3.0, -1.0]
    # step 2: losses 1 and 4: rates 1/2 and 1, mean 3/4, relative 2/3 and 4/3;
    # norms 3 and 2.2, mean 2.6, targets 1.733 and 3.467: signs + and -
    gradient = run_step(method, [3.0, 2.2], [1.0, 4.0])
    torch.testing.assert_close(gradient, torch.tensor([3.0, -2.2]))
    assert method.parts[0].initial_losses.tolist() == [2.0, 4.0]


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
        method.parts[0].task_weights.copy_(torch.rand(4, generator=generator) + 0.1)
    gradient = run_step(method, norms, now)
    weights = method.parts[0].task_weights.detach().clone().requires_grad_()
    scaled = weights * torch.tensor(norms)
    rates = torch.tensor(now) / torch.tensor(start)
    target = (scaled.mean() * (rates / rates.mean()) ** alpha).detach()
    (scaled - target).abs().sum().backward()
    torch.testing.assert_close(gradient, weights.grad, rtol=1e-4, atol=1e-5)


def test_weights_sum_to_the_number_of_tasks_and_move_toward_balance():
    net = SmallNet("gradnorm(alpha=0.0)")
    network = [*net.backbone.parameters(), *net.heads.parameters()]
    optimizer = torch.optim.Adam(
        [{"params": network, "lr": 1e-4}, {"params": net.method.parameters(), "lr": 0.02}]
    )
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


def textbook_step(net: SmallNet, weights, first, x, optimizers, alpha) -> list[float]:
    """One step as the paper has it: the weights are renormalized in place after the optimizer."""
    features = net.backbone(x)
    views = [features.detach().requires_grad_() for _ in net.heads]
    losses = [
        (head(view)[:, 0] - torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) - 3).square().mean()
        for k, (head, view) in enumerate(zip(net.heads, views, strict=True))
    ]
    values = torch.stack([loss.detach() for loss in losses])
    if not first:
        first.extend(values.tolist())
    for optimizer in optimizers:
        optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    grads = torch.stack([view.grad for view in views])
    features.backward((weights.detach()[:, None, None] * grads).sum(dim=0))
    scaled = weights * grads.flatten(1).norm(dim=1)
    rates = values / torch.tensor(first, dtype=values.dtype)
    target = (scaled.mean() * (rates / rates.mean()) ** alpha).detach()
    (scaled - target).abs().sum().backward()
    used = weights.tolist()
    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        weights *= len(weights) / weights.sum()
    return used


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.02),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_training_is_the_textbooks_with_weights_renormalized_after_each_step(make):
    alpha = 1.5
    net = SmallNet(f"gradnorm(alpha={alpha})").double()
    twin = copy.deepcopy(net)
    optimizer = make(net.parameters())
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    network = [*twin.backbone.parameters(), *twin.heads.parameters()]
    optimizers, first = [make(network), make([weights])], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(8, 4, dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        net(x).backward()
        optimizer.step()
        used = textbook_step(twin, weights, first, x, optimizers, alpha)
        assert net.method.stats.weights.tolist() == pytest.approx(used, rel=1e-5)
        for ours, theirs in zip(net.backbone.parameters(), twin.backbone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert max(used) > 1.1  # the weights did move


def test_a_weight_driven_below_zero_is_set_to_zero():
    method = mtlkit.create_method("gradnorm", 2)
    with torch.no_grad():
        method.parts[0].task_weights.copy_(torch.tensor([-1.0, 3.0]))
    run_step(method, [1.0, 1.0], [1.0, 1.0])
    assert method.stats.weights.tolist() == [0.0, 2.0]
    # from there, the next move counts in full
    with torch.no_grad():
        method.parts[0].task_weights += torch.tensor([0.5, 0.0])
    run_step(method, [1.0, 1.0], [1.0, 1.0])
    assert method.stats.weights.tolist() == pytest.approx([0.4, 1.6])


def test_tasks_that_are_alone_with_weights_of_zero_count_alike():
    method = mtlkit.create_method("gradnorm", 3)
    with torch.no_grad():
        method.parts[0].task_weights.copy_(torch.tensor([-1.0, -1.0, 3.0]))
    run_step(method, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    z = torch.zeros(1, 3, requires_grad=True)
    views = method(z)
    method.total([views[0][0, 0] + 1, views[1][0, 1] + 1, None]).backward()
    assert z.grad.tolist() == [[1.0, 1.0, 0.0]]


def test_an_absent_task_keeps_its_weight():
    method = mtlkit.create_method("gradnorm", 3)
    with torch.no_grad():
        method.parts[0].task_weights.copy_(torch.tensor([0.6, 0.9, 1.5]))
    run_step(method, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    with torch.no_grad():
        method.parts[0].task_weights += torch.tensor([0.0, 0.0, 0.5])
    z = torch.zeros(1, 3, requires_grad=True)
    views = method(z)
    method.total([views[0][0, 0] + 1, None, views[2][0, 2] + 1]).backward()
    # 0.6 and 1.5 + 0.5, first with mean one, then with the sum that the two had
    torch.testing.assert_close(z.grad[0, [0, 2]], torch.tensor([0.6, 2.0]) / 1.3)
    assert method.parts[0].balanced.tolist() == pytest.approx([0.6 * 2.1 / 2.6, 0.9, 2.0 * 2.1 / 2.6])


def test_the_parameter_is_left_to_the_optimizer():
    method = mtlkit.create_method("gradnorm", 2)
    with torch.no_grad():
        method.parts[0].task_weights.copy_(torch.tensor([1.0, 3.0]))
    run_step(method, [1.0, 1.0], [1.0, 1.0])
    assert method.parts[0].task_weights.tolist() == [1.0, 3.0]
    assert method.stats.weights.tolist() == [0.5, 1.5]


def test_it_needs_the_losses():
    method = mtlkit.create_method("gradnorm", 2)
    z = torch.ones(1, 2, requires_grad=True)
    first, second = method(z)
    with pytest.raises(mtlkit.MtlkitError, match="call backward"):
        (first.sum() + second.sum()).backward()
