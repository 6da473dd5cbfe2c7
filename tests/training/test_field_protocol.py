"""What published setups need of training: plateaus, clipping of what is shared, means over epochs."""

from __future__ import annotations

import pytest
import torch

import mtlkit
from mtlkit.errors import ConfigError, SpecError
from mtlkit.training import load_checkpoint
from mtlkit.training.evaluation import score
from mtlkit.training.optimizers import make_schedule
from tests.training.small_problem import TASKS, PlainNet, SmallNet, flat, make_loader, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:no validation set")
DIGITS = {"data": "multidigits(train=64, val=32, test=32)", "batch_size": 32, "progress": False}


def test_a_plateau_of_the_score_lowers_the_rate():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make_schedule("plateau(factor=0.5, patience=1, min_lr=0.2)", optimizer, 100, 10)
    rates = []
    for reached in (-3.0, -2.0, -2.0, -2.0, -2.5, -2.5, -2.5, -2.5):  # the higher the better
        schedule.step(reached)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.2]
    with pytest.raises(ConfigError, match="rotation_decay"):
        make_schedule("plateau", optimizer, 100, 10, rotation_decay=0.9)
    with pytest.raises(ConfigError, match="factor"):
        make_schedule("plateau(factor=2)", optimizer, 100, 10)


def test_a_run_follows_the_plateau_and_resumes_within_it(tmp_path):
    settings = {**DIGITS, "lr": 0.0, "schedule": "plateau(factor=0.5, patience=0)"}
    mtlkit.train(**settings, epochs=1, output=tmp_path / "run")
    mtlkit.train(**settings, epochs=4, output=tmp_path / "run", resume="auto")
    state = load_checkpoint(sorted((tmp_path / "run/checkpoints").glob("step-*.pt"))[-1])
    assert state["schedulers"][0]["num_bad_epochs"] == 0
    assert state["schedulers"][0]["last_epoch"] == 4


def test_the_best_validation_may_be_that_of_delta_m_or_of_a_mean_metric():
    metrics = {"label": {"loss": 1.0, "accuracy": 0.9}, "value": {"loss": 1.0, "mse": 2.0, "mae": 3.0}}
    row = {"label/accuracy": 0.75, "value/mse": 1.0, "value/mae": 4.0}
    # +20 % and -100 % and +25 %
    assert score(metrics, TASKS, row, {}) == pytest.approx((20 - 100 + 25) / 3)
    both = [mtlkit.Task.regression("a"), mtlkit.Task.regression("b")]
    found = {name: {"loss": 0.0, "mae": mae} for name, mae in (("a", 1.0), ("b", 5.0))}
    assert score(found, both, "mean/mae", {}) == -3
    broken = {**metrics, "value": {"loss": 1.0, "mse": float("nan"), "mae": 3.0}}
    assert score(broken, TASKS, row, {}) == -float("inf")
    make_trainer(best_by={"label/accuracy": 0.75, "depth/mse": 1.0})  # single-task networks have less
    with pytest.raises(SpecError, match="label/accuracy"):
        make_trainer(best_by={"depth/mse": 1.0})
    with pytest.raises(SpecError, match="mean/acuracy"):
        make_trainer(best_by="mean/acuracy")


def test_clipping_may_be_of_the_shared_parameters_alone():
    steps = {}
    for clip in ("all", "shared"):
        torch.manual_seed(0)
        model = SmallNet()
        before = [parameter.detach().clone() for parameter in model.shared_parameters()]
        heads = flat(model.heads)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = mtlkit.Trainer(model, TASKS, optimizer, max_grad_norm=1e-3, clip=clip, progress=False)
        trainer.fit(make_loader(shuffle=False), steps=1)
        moved = [p.detach() - old for p, old in zip(model.shared_parameters(), before, strict=True)]
        steps[clip] = (
            torch.cat([m.flatten() for m in moved]).norm(),
            (flat(model.heads) - heads).norm(),
        )
    assert steps["shared"][0] == pytest.approx(1e-3, rel=1e-3)
    assert steps["shared"][1] > 1e-2  # as without clipping
    assert steps["all"][0] < 1e-3
    assert steps["all"][1] < 1e-3
    plain = PlainNet()
    with pytest.raises(SpecError, match="shared_parameters"):
        mtlkit.Trainer(plain, TASKS, torch.optim.SGD(plain.parameters()), clip="shared")


def test_the_mean_of_the_last_epochs_is_that_of_their_checkpoints(tmp_path):
    settings = {**DIGITS, "test_last": 3, "seed": 1}
    result = mtlkit.train(**settings, epochs=5, output=tmp_path / "run")
    single = {}
    for epochs in (3, 4, 5):  # with the same seed, the same epochs
        ended = mtlkit.train(
            **{**settings, "test_last": 1}, epochs=epochs, output=tmp_path / f"{epochs}"
        )
        single[epochs] = ended.test
    for task, metrics in result.test.items():
        for name, value in metrics.items():
            mean = sum(single[epochs][task][name] for epochs in (3, 4, 5)) / 3
            assert value == pytest.approx(mean, abs=1e-6), (task, name)


def test_validations_within_an_epoch_do_not_displace_the_last_epochs(tmp_path):
    settings = {**DIGITS, "batch_size": 8, "epochs": 4, "test_last": 3}
    often = mtlkit.train(**settings, eval_steps=3, output=tmp_path / "often")
    assert often.test == mtlkit.train(**settings, output=tmp_path / "after_epochs").test


def test_a_run_without_a_whole_epoch_has_no_last_epochs(tmp_path):
    with pytest.raises(ConfigError, match=r"test_last .* an epoch has 2 steps"):
        mtlkit.train(**DIGITS, steps=1, test_last=1, output=tmp_path / "run")


def test_an_interrupted_epoch_is_not_one_of_the_last(tmp_path):
    trainer = make_trainer(output=tmp_path, save_total_limit=4)
    trainer.fit(make_loader(), epochs=2)
    trainer.fit(make_loader(), steps=12)  # two steps of the third epoch
    loader = make_loader(seed=1)
    twice = trainer.evaluate_last(loader, 3)
    both = [make_trainer(output=tmp_path / f"{n}") for n in (1, 2)]
    for epochs, one in enumerate(both, start=1):
        one.fit(make_loader(), epochs=epochs)
    means = [one.evaluate(loader)["value"]["mse"] for one in both]
    assert twice["value"]["mse"] == pytest.approx(sum(means) / 2)
