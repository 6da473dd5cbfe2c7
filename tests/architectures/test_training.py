"""Every architecture trains, with a plain sum and with methods that work at the shared features."""

from __future__ import annotations

import copy
import re

import pytest
import torch

import mtlkit
from mtlkit.errors import SpecError
from mtlkit.registry import architectures
from tests.architectures.cases import (
    CASES,
    TASKS,
    Case,
    ids,
    light,
    losses_of,
    objective,
    targets_for,
    train,
)

METHODS = ("sum", "pcgrad", "rotograd")
FORKING = [case for case in CASES if case.forks]


def test_every_registered_architecture_is_tested_here():
    tested = {case.architecture for case in CASES}
    own = {
        n for n in mtlkit.list_architectures() if architectures.get(n).__module__.startswith("mtlkit.")
    }
    assert own == tested


@pytest.mark.parametrize(
    ("case", "method"),
    [
        pytest.param(case, method, marks=pytest.mark.slow)
        if case.heavy and method != "rotograd"
        else (case, method)
        for case in CASES
        for method in METHODS
        if case.forks or method == "sum"
    ],
    ids=lambda value: ids(value) if isinstance(value, Case) else value,
)
def test_loss_falls_and_every_parameter_moves(case, method):
    net = case.build(method)
    before = {name: value.clone() for name, value in net.named_parameters()}
    rotations = net.method.rotations if method == "rotograd" else None
    history = train(net, case.inputs(), steps=20)
    assert history[-1] < 0.95 * history[0]
    still = [
        name
        for name, value in net.named_parameters()
        if torch.equal(value, before[name]) and not name.startswith("method.")
    ]
    assert not still
    if rotations is not None:
        moved = (net.method.rotations - rotations).abs().amax(dim=(1, 2))
        assert (moved > 0).all()


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_state_dict_gives_the_same_network_and_the_same_next_steps(case):
    method = "rotograd" if case.forks else "sum"
    net, x = case.build(method), case.inputs()
    train(net, x, steps=2)
    torch.manual_seed(9)
    other = mtlkit.create_architecture(case.spec, TASKS, method=method)
    other.load_state_dict(net.state_dict(), strict=True)
    for task, prediction in net.eval()(x).items():
        assert torch.equal(other.eval()(x)[task], prediction)
    torch.manual_seed(0)
    first = train(net, x, steps=2)
    torch.manual_seed(0)
    assert train(other, x, steps=2) == first


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_only_one_task_gives_what_all_tasks_give(case):
    net, x = case.build("rotograd" if case.forks else "sum"), case.inputs()
    train(net, x, steps=1)
    net.eval()
    together = net(x)
    for task in TASKS:
        assert torch.equal(net.only(task)(x), together[task])


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_shared_and_task_parameters_are_what_the_gradients_say(case):
    net, x = case.build(), case.inputs()
    train(net, x, steps=1)
    net.train()
    reached = {}
    for task in TASKS:
        net.zero_grad(set_to_none=True)
        prediction = net.only(task)(x)
        prediction.square().mean().backward()
        reached[task] = {id(p) for p in net.parameters() if p.grad is not None}
    shared = {id(p) for p in net.shared_parameters()}
    own = {task: {id(p) for p in net.task_parameters(task)} for task in TASKS}
    assert shared
    assert shared >= reached["a"] & reached["b"]
    names = {id(p): name for name, p in net.named_parameters()}
    for task, other in (("a", "b"), ("b", "a")):
        assert own[task]
        alone = reached[task] - reached[other]
        assert own[task] <= alone
        # PLE's gates below the last level serve one task, but lie below the fork
        assert all("task_gates" in names[index] for index in alone - own[task])
    everything = {id(p) for p in net.parameters()} - {id(p) for p in net.method.parameters()}
    assert shared | own["a"] | own["b"] == everything


@pytest.mark.parametrize("case", light(FORKING), ids=ids)
def test_merged_gradient_of_the_sum_is_that_of_the_plain_sum_of_losses(case):
    """The junction stands where every path from a shared parameter to a loss passes once."""
    net, x = case.build("sum"), case.inputs()
    twin = copy.deepcopy(net)
    torch.manual_seed(3)
    predictions = net(x)
    targets = targets_for(predictions)
    objective(net, losses_of(predictions, targets)).backward()
    torch.manual_seed(3)
    reference = losses_of(_without_junction(twin, x), targets)
    total = sum(reference.values())
    auxiliary = twin.auxiliary_loss()
    (total if auxiliary is None else total + auxiliary).backward()
    scale = max(float(other.grad.abs().max()) for other in twin.parameters())
    for (name, parameter), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert (parameter.grad - other.grad).abs().max() <= 1e-4 * scale, name


class Copies(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, features):
        return [features] * self.count


def _without_junction(net, x):
    """Both hooks, with autograd's own sum in between."""
    net.method = Copies(len(net.tasks))
    return net(x)


@pytest.mark.parametrize("case", light(FORKING), ids=ids)
def test_a_weight_per_task_reaches_every_shared_parameter_with_that_weight(case):
    """With weights 3 and 0, shared parameters get three times the first task's gradient alone."""

    class Fixed(mtlkit.GradientAggregator):
        name = "fixed"

        def weights(self, gram):
            return torch.tensor([3.0, 0.0], dtype=gram.dtype)

    x = case.inputs()
    net = case.build(Fixed(tuple(TASKS)))
    twin = case.build("sum")
    twin.load_state_dict(net.state_dict())
    torch.manual_seed(3)
    predictions = net(x)
    targets = targets_for(predictions)
    net.method.total(losses_of(predictions, targets)).backward()
    torch.manual_seed(3)
    predictions = twin(x)
    loss = losses_of(predictions, targets)["a"]
    twin.method.total({"a": loss}).backward()
    expected = [torch.zeros_like(p) if p.grad is None else 3 * p.grad for p in twin.shared_parameters()]
    scale = max(float(gradient.abs().max()) for gradient in expected)
    assert scale > 0
    for parameter, gradient in zip(net.shared_parameters(), expected, strict=True):
        assert (parameter.grad - gradient).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("pcgrad", "pcgrad(wrt=parameters)"),
        ("pcgrad(wrt=features)", "pcgrad(wrt=parameters)"),
        ("rotograd", "scale(wrt=parameters)"),
        ("rotate", "sum"),
        ("rotate+cagrad(c=0.3, wrt=parameters)", "cagrad(c=0.3, wrt=parameters)"),
        ("normalize+mgda", "normalize+mgda(wrt=parameters)"),
    ],
)
def test_methods_that_need_features_are_refused_where_there_are_none(case, method, remedy):
    message = rf"write '{re.escape(remedy)}'; or .*\(fork="
    with pytest.raises(SpecError, match=message):
        case.build(method)
    ready = mtlkit.create_method(method, TASKS, feature_dim=12)
    with pytest.raises(SpecError, match=message):
        case.build(ready)
    assert str(case.build(remedy).method) == remedy


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
@pytest.mark.parametrize("method", ["pcgrad(wrt=parameters)", "normalize+mgda(wrt=parameters)"])
def test_merges_of_parameter_gradients_train_networks_without_shared_features(case, method):
    history = train(case.build(method), case.inputs(), steps=20)
    assert history[-1] < 0.95 * history[0]


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
def test_methods_that_weigh_losses_work_without_shared_features(case):
    net = case.build("normalize")
    history = train(net, case.inputs(), steps=10)
    assert history[-1] < history[0]


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_a_network_can_be_copied_between_forward_and_backward(case):
    net, x = case.build(), case.inputs()
    train(net, x, steps=1)
    net(x)  # a forward pass whose graph is still alive
    twin = copy.deepcopy(net).eval()
    for task, prediction in net.eval()(x).items():
        assert torch.equal(twin(x)[task], prediction)
