"""Mistakes in a training loop of one's own are answered in the first step, and nothing else is."""

import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_post_hooks

import mtlkit
from mtlkit.engine.guards import optimizers
from mtlkit.errors import SpecError, UsageError

TASKS = ("size", "kind")


class Loop:
    """A training loop as a user writes it."""

    def __init__(self, spec, **options):
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 3)])
        self.method = mtlkit.create_method(spec, TASKS, feature_dim=8, **options)
        self.x, self.size = torch.randn(16, 4), torch.randn(16, 1)
        self.kind = torch.randint(0, 3, (16,))

    @property
    def network(self):
        return [*self.backbone.parameters(), *self.heads.parameters()]

    def losses(self):
        first, second = self.method(self.backbone(self.x))
        size = functional.mse_loss(self.heads[0](first), self.size)
        return {"size": size, "kind": functional.cross_entropy(self.heads[1](second), self.kind)}

    def steps(self, number, *optimizers, change=dict):
        for _ in range(number):
            self.method.total(change(self.losses())).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("spec", ["rotograd", "uw", "gradnorm"])
def test_a_method_outside_the_optimizer_is_warned_of_in_the_first_step(spec):
    loop = Loop(spec)
    with pytest.warns(UserWarning, match="no optimizer holds .*param_groups"):
        loop.steps(1, torch.optim.SGD(loop.network, lr=0.1))


@pytest.mark.parametrize("how", ["apart", "rarely", "added", "frozen", "another"])
def test_an_optimizer_that_trains_the_method_is_not_warned_of(how):
    loop = Loop("rotograd")
    network = torch.optim.SGD(loop.network, lr=0.1)
    if how == "another":  # a network that does not belong to the method
        other = nn.Linear(2, 2)
        other(torch.ones(2)).sum().backward()
        loop.steps(1, torch.optim.SGD(other.parameters(), lr=0.1))
    elif how == "frozen":
        loop.method.requires_grad_(False)
        loop.steps(2, network)
    elif how == "added":
        loop.method.total(loop.losses()).backward()
        network.add_param_group({"params": [*loop.method.parameters()]})
        network.step()
    else:
        own = torch.optim.SGD(loop.method.parameters(), lr=0.1)
        loop.steps(2, network, *([own] if how == "apart" else []))


def test_optimizers_are_no_longer_watched_once_every_method_is_checked(monkeypatch):
    monkeypatch.setattr(optimizers, "_waiting", weakref.WeakKeyDictionary())
    first, second = Loop("rotograd"), Loop("uw")
    trained = [
        torch.optim.SGD([*loop.network, *loop.method.parameters()], lr=0.1) for loop in (first, second)
    ]
    first.steps(1, trained[0])
    second.method.total(second.losses()).backward()
    first.steps(1, trained[0])
    assert optimizers._after_step in _global_optimizer_post_hooks.values()  # for the second one
    trained[1].step()
    second.steps(1, trained[1])
    assert optimizers._after_step not in _global_optimizer_post_hooks.values()


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "pcgrad(wrt=parameters)", "dwa"])
def test_training_in_evaluation_mode_is_warned_of_once(spec):
    loop = Loop(spec)
    loop.method.eval()
    everything = torch.optim.SGD([*loop.network, *loop.method.parameters()], lr=0.1)
    with pytest.warns(UserWarning, match="evaluation mode.*method.train") as caught:
        loop.steps(3, everything)
    assert len(caught) == 1


def test_evaluation_and_the_plain_sum_in_evaluation_mode_are_not_warned_of():
    loop = Loop("pcgrad")
    loop.method.eval()
    assert loop.method.total(loop.losses()).item() > 0  # without no_grad, but also without a backward
    plain = Loop("sum")
    plain.method.eval()
    plain.steps(1, torch.optim.SGD(plain.network, lr=0.1))


@pytest.mark.parametrize("spec", ["pcgrad", "sum", "pcgrad(wrt=parameters)"])
def test_a_detached_loss_is_warned_of_in_the_first_step(spec):
    loop = Loop(spec)
    with pytest.warns(UserWarning, match="task.* size has no gradient.*give None") as caught:
        loop.steps(3, change=lambda losses: losses | {"size": losses["size"].detach()})
    assert len(caught) == 1


def test_a_task_without_any_loss_is_warned_of_and_one_that_takes_turns_is_not():
    loop = Loop("pcgrad")
    with pytest.warns(UserWarning, match="size had no loss.*labels missing") as caught:
        loop.steps(60, change=lambda losses: {"kind": losses["kind"]})
    assert len(caught) == 1
    turns, taken = Loop("pcgrad"), iter(range(60))

    def take(losses):
        name = TASKS[next(taken) % 2]
        return {name: losses[name]}

    turns.steps(60, change=take)


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd"])
def test_a_head_that_begins_in_place_is_refused_with_advice(spec):
    loop = Loop(spec)
    loop.heads[0] = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 1))
    with pytest.raises(RuntimeError, match=r"method\(features\).* write nn.ReLU\(\)"):
        loop.losses()


def test_a_head_that_begins_in_place_above_a_frozen_backbone_is_refused():
    loop = Loop("pcgrad")
    loop.backbone.requires_grad_(False)
    loop.steps(2, torch.optim.SGD(loop.heads.parameters(), lr=0.1))
    loop.heads[0] = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 1))
    with pytest.raises(UsageError, match=r"in place.*nn.ReLU\(\)"):
        loop.steps(1)


@pytest.mark.parametrize(
    ("task", "shape", "axis"),
    [
        (mtlkit.Task.classification("kind", 3), (2, 3), 1),
        (mtlkit.Task.segmentation("kind", 3), (2, 3, 4, 4), 1),
        (mtlkit.Task.segmentation("kind", 3), (2, 4, 4, 3), -1),
    ],
)
def test_one_hot_labels_are_answered_with_the_argmax_to_take(task, shape, axis):
    prediction = torch.randn(2, 3, *shape[2:3] * (len(shape) - 2))
    with pytest.raises(UsageError, match=rf"class indices are expected.*argmax\({axis}\)"):
        task.measure(prediction[..., :4, :4], torch.zeros(shape))


def test_rotations_of_maps_without_a_size_are_answered_with_the_channels():
    with pytest.raises(SpecError, match="dim=channel"):
        mtlkit.create_method("rotograd", 2)
    method = mtlkit.create_method("rotograd", 2, feature_dim=64)
    with pytest.raises(UsageError, match=r"dim=channel.*feature_dim=64"):
        method(torch.randn(2, 64, 8, 128, requires_grad=True))


def test_accumulated_and_skipped_steps_cause_no_warning():
    loop = Loop("uw+pcgrad(wrt=parameters)")
    everything = torch.optim.SGD(mtlkit.param_groups([*loop.heads, loop.backbone, loop.method], lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(6):
            loop.method.total(loop.losses(), merge=step % 2 == 1).backward()
            with torch.no_grad():
                loop.method.total(loop.losses())
            if step % 2:
                everything.step()


def test_the_optimizer_of_another_network_is_none_of_a_methods_business():
    waiting = []
    for _ in range(20):  # their networks are gone, and others may lie where they lay in memory
        loop = Loop("rotograd")
        loop.steps(1)
        waiting.append(loop.method)
        del loop
        other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Linear(1, 3))
        other(torch.randn(2, 4)).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.optim.SGD(other.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("shape", "refused"),
    [
        ((2, 16, 8, 8), True),  # square maps
        ((2, 4, 4, 8), False),  # channels last
        ((2, 3, 5, 8), False),  # tokens of several frames
        ((2, 5, 8), False),  # tokens
    ],
)
def test_the_width_of_a_square_map_is_not_rotated(shape, refused):
    features = torch.randn(shape, requires_grad=True)
    method = mtlkit.create_method("rotograd", 2, feature_dim=8)
    if refused:
        with pytest.raises(UsageError, match=rf"dim=channel and feature_dim={shape[1]}.*dim=3"):
            method(features)
    else:
        method(features)
    last = mtlkit.create_method(f"rotograd(dim={len(shape) - 1})", 2, feature_dim=8)
    assert len(last(features)) == 2
