"""Optimizers and schedules from config strings."""

import math

import pytest
import torch

import mtlkit
from mtlkit.errors import ConfigError, SpecError
from mtlkit.training.config import TrainConfig
from mtlkit.training.optimizers import CombinedOptimizer, build_optimizer, make_schedule
from tests.training.small_problem import TASKS, SmallNet, flat, make_loader


def groups(model):
    return mtlkit.param_groups(model, lr=0.1, method_lr=0.05)


def test_the_method_can_have_an_optimizer_of_its_own():
    optimizer = build_optimizer("sgd(momentum=0.9)", groups(SmallNet("rotograd")), "radam")
    assert isinstance(optimizer, CombinedOptimizer)
    assert [type(part).__name__ for part in optimizer.parts] == ["SGD", "RAdam"]
    assert [group["name"] for group in optimizer.param_groups] == ["network", "method"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05]


def test_a_method_without_parameters_needs_no_second_optimizer():
    assert type(build_optimizer("sgd", groups(SmallNet("sum")), "radam")) is torch.optim.SGD
    with pytest.raises(SpecError, match="did you mean 'radam'"):
        build_optimizer("sgd", groups(SmallNet("sum")), "radamm")


def test_two_optimizers_move_what_each_alone_would_move():
    torch.manual_seed(0)
    one, two = SmallNet("rotograd"), SmallNet("rotograd")
    two.load_state_dict(one.state_dict())
    together = build_optimizer("sgd(momentum=0.9)", groups(one), "adam")
    network, method = groups(two)
    apart = [torch.optim.SGD([network], momentum=0.9), torch.optim.Adam([method])]
    for _ in range(3):
        for model, optimizers in ((one, [together]), (two, apart)):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert torch.equal(flat(one), flat(two))


def test_a_run_with_two_optimizers_and_a_schedule_resumes_bit_for_bit(tmp_path):
    def fit(steps, name, resume=None):
        torch.manual_seed(0)
        model = SmallNet("rotograd")
        optimizer = build_optimizer("sgd(momentum=0.9)", groups(model), "radam")
        trainer = mtlkit.Trainer(
            model,
            TASKS,
            optimizer,
            scheduler=make_schedule("cosine(period=5, on=network)", optimizer, 20, 5),
            output=tmp_path / name,
            progress=False,
        )
        trainer.fit(make_loader(), make_loader(seed=1), steps=steps, resume=resume)
        return flat(model), [group["lr"] for group in optimizer.param_groups]

    whole = fit(13, "whole")
    fit(7, "parts")
    parts = fit(13, "parts", resume="auto")
    assert torch.equal(whole[0], parts[0])
    assert whole[1] == parts[1]
    assert whole[1][1] == 0.05  # on=network leaves the method alone


def rates(spec, count, steps=20, epoch_steps=4):
    optimizer = build_optimizer("sgd", groups(SmallNet("rotograd")))
    schedule = make_schedule(spec, optimizer, steps, epoch_steps)
    found = []
    for _ in range(count):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return found


def test_schedules_follow_their_definitions():
    for step, (network, method) in enumerate(rates("cosine", 20)):
        assert network == pytest.approx(0.1 * (1 + math.cos(math.pi * step / 20)) / 2)
        assert method == pytest.approx(network / 2)
    assert rates("cosine(period=2, on=network)", 5) == [
        [pytest.approx(value), 0.05] for value in (0.1, 0.05, 0.0, 0.05, 0.1)
    ]
    halved = [0.1] * 4 + [0.05] * 4 + [0.025]
    assert [network for network, _ in rates("step(epochs=1, factor=0.5)", 9)] == pytest.approx(halved)
    assert [network for network, _ in rates("step(every=4, factor=0.5)", 9)] == pytest.approx(halved)
    assert make_schedule("constant", build_optimizer("sgd", groups(SmallNet())), 1, 1) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cosin", "did you mean 'cosine'"),
        ("cosine(periode=3)", "did you mean 'period'"),
        ("cosine(period=0)", "must be above 0"),
        ("cosine(on=heads)", "on of schedule cosine must be one of 'all', 'network', not 'heads'"),
        ("plateau(patience=1.5)", "patience of schedule plateau must be an integer"),
        ("step(factor=0.5)", "either every=STEPS or epochs=N"),
        ("step(every=3, epochs=2)", "either every=STEPS or epochs=N"),
    ],
)
def test_wrong_schedules_are_named(spec, message):
    optimizer = build_optimizer("sgd", groups(SmallNet()))
    with pytest.raises(SpecError, match=message):
        make_schedule(spec, optimizer, 10, 2)


def test_the_configuration_knows_both():
    config = TrainConfig.make(
        {"data": "x", "method_optimizer": "radam", "schedule": {"name": "cosine", "period": 200}}
    )
    assert (config.method_optimizer, config.schedule) == ("radam", "cosine(period=200)")
    with pytest.raises(ConfigError, match="'schedule'"):
        TrainConfig.make({"data": "x", "schedule": "cosine("})
