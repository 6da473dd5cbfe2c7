"""The slow learner: groups, schedule and the warning."""

import warnings

import pytest
import torch

import mtlkit
from mtlkit.errors import SpecError
from mtlkit.training import optimizers
from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import build_trainer
from tests.networks import SmallNet, train


@pytest.fixture(autouse=True)
def _fresh_warning(monkeypatch):
    monkeypatch.setattr(optimizers, "_warned", False)


def optimizer_of(net, **options):
    return torch.optim.SGD(mtlkit.param_groups(net, **options))


def test_the_method_has_a_group_of_its_own_at_half_the_rate():
    net = SmallNet("rotograd")
    network, method = mtlkit.param_groups(net, lr=0.1, weight_decay=0.01)
    assert network["lr"] == 0.1
    assert network["weight_decay"] == 0.01
    assert (method["name"], method["lr"], method["weight_decay"]) == ("method", 0.05, 0.0)
    assert {id(p) for p in method["params"]} == {id(p) for p in net.method.parameters()}
    together = [id(p) for group in (network, method) for p in group["params"]]
    assert sorted(together) == sorted(id(p) for p in net.parameters())


def test_modules_may_be_given_apart():
    net = SmallNet("rotograd")
    apart = mtlkit.param_groups([net.backbone, net.heads, net.method], lr=0.1)
    together = mtlkit.param_groups(net, lr=0.1)
    assert len(together) == 2
    for mine, its in zip(apart, together, strict=True):
        assert [id(p) for p in mine["params"]] == [id(p) for p in its["params"]]


def test_a_method_without_parameters_has_no_group():
    assert [g["name"] for g in mtlkit.param_groups(SmallNet("pcgrad"), lr=0.1)] == ["network"]


def test_options_of_the_method_are_its_own():
    given = mtlkit.param_groups(SmallNet("rotograd"), lr=0.1, method_options={"momentum": 0.5})
    assert given[1]["momentum"] == 0.5
    assert "momentum" not in given[0]


def test_what_is_not_a_module_is_refused():
    with pytest.raises(SpecError, match="module"):
        mtlkit.param_groups([torch.zeros(1)], lr=0.1)


def test_rotations_faster_than_the_network_are_warned_of_once():
    with pytest.warns(UserWarning, match=r"slow learner.*rotation_schedule"):
        mtlkit.param_groups(SmallNet("rotograd"), lr=0.1, method_lr=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mtlkit.param_groups(SmallNet("rotograd"), lr=0.1, method_lr=0.2)


@pytest.mark.parametrize(("spec", "method_lr"), [("gradnorm", 0.2), ("rotograd", 0.1)])
def test_nothing_is_warned_of_without_rotations_or_at_an_equal_rate(spec, method_lr):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mtlkit.param_groups(SmallNet(spec), lr=0.1, method_lr=method_lr)


def test_the_schedule_warns_of_fast_rotations_too():
    net = SmallNet("rotograd")
    optimizer = optimizer_of(net, lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.3
    with pytest.warns(UserWarning, match="slow learner"):
        mtlkit.rotation_schedule(optimizer)


def test_the_schedule_decays_the_rotations_and_leaves_the_network_alone():
    net = SmallNet("rotograd")
    optimizer = optimizer_of(net, lr=0.1, method_lr=0.04)
    schedule = mtlkit.rotation_schedule(optimizer, decay=0.9)
    for _ in range(5):
        train(net, [torch.randn(4, 4)], optimizer)
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.04 * 0.9**5)
    assert schedule.get_last_lr() == pytest.approx([0.1, 0.04 * 0.9**5])


def test_the_schedule_goes_together_with_another():
    net = SmallNet("rotograd")
    optimizer = optimizer_of(net, lr=0.1, method_lr=0.04)
    own = mtlkit.rotation_schedule(optimizer, decay=0.9)
    other = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        train(net, [torch.randn(4, 4)], optimizer)
        other.step()
        own.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.04 / 4 * 0.9**4)


def test_the_schedule_is_saved_and_goes_on(tmp_path):
    net = SmallNet("rotograd")
    optimizer = optimizer_of(net, lr=0.1, method_lr=0.04)
    schedule = mtlkit.rotation_schedule(optimizer, decay=0.9)
    for _ in range(3):
        train(net, [torch.randn(4, 4)], optimizer)
        schedule.step()
    torch.save(
        {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "state.pt"
    )
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again = optimizer_of(SmallNet("rotograd"), lr=0.1, method_lr=0.04)
    resumed = mtlkit.rotation_schedule(again, decay=0.9)
    again.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["schedule"])
    assert resumed.last_epoch == schedule.last_epoch
    for each in (schedule, resumed):
        each.optimizer.step()
        each.step()
    assert again.param_groups[1]["lr"] == pytest.approx(0.04 * 0.9**4)
    assert optimizer.param_groups[1]["lr"] == again.param_groups[1]["lr"]


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.1])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(SpecError, match="decay"):
        mtlkit.rotation_schedule(optimizer_of(SmallNet("rotograd"), lr=0.1), decay=decay)


def test_an_optimizer_without_the_methods_group_is_refused_with_the_remedy():
    with pytest.raises(SpecError, match="param_groups"):
        mtlkit.rotation_schedule(torch.optim.SGD(SmallNet("rotograd").parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("schedule", "network", "method"),
    [
        ("constant", 1.0, 1.0),
        ("cosine(period=10)", 0.5, 0.5),
        ("cosine(period=10, on=network)", 0.5, 1.0),
        ("step(every=2, factor=0.5)", 0.25, 0.25),
    ],
)
def test_auto_ends_at_the_share_that_the_paper_ended_at_whatever_the_schedule(
    tmp_path, schedule, network, method
):
    settings = {"data": "multidigits(train=64, val=8, test=8)", "method": "rotograd", "batch_size": 16}
    config = TrainConfig.make(
        {
            **settings,
            "steps": 5,
            "schedule": schedule,
            "lr": 1e-3,
            "method_lr": 1e-3,
            "rotation_decay": "auto",
            "output": str(tmp_path),
        }
    )
    trainer, loaders = build_trainer(config, progress=False)
    trainer.fit(loaders["train"], loaders["val"], steps=5)
    rates = {group["name"]: group["lr"] for group in trainer.optimizer.param_groups}
    assert rates["network"] == pytest.approx(1e-3 * network)
    assert rates["method"] == pytest.approx(1e-3 * method * 0.9999**17_600)
