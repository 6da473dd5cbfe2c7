"""How long a run trains where nothing says it, and what its result says about that."""

import json
from types import SimpleNamespace

import pytest
import torch

import mtlkit
from mtlkit.training import load_checkpoint
from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import Length, plan_length
from tests.training.small_problem import make_loader, make_trainer

LONG = SimpleNamespace(minimum_steps=4000)


def plan(dataset, batches, **settings):
    return plan_length(TrainConfig.make({"data": "multidigits", **settings}), dataset, batches)


def test_a_small_table_trains_for_thousands_of_steps_with_early_stopping():
    assert plan(LONG, 7) == Length(None, 4000, 100, 10, 7)
    assert plan(LONG, 300) == Length(None, 4000, 300, 10, 300)  # never more often than every epoch
    assert plan(LONG, 7, eval_steps=50, early_stopping_patience=3) == Length(None, 4000, 50, 3, 7)


def test_other_data_and_large_tables_train_for_ten_epochs_and_a_set_length_is_kept():
    assert plan(SimpleNamespace(), 7) == Length(10, None, None, None, 7)
    assert plan(LONG, 400) == Length(10, None, None, None, 400)
    assert plan(LONG, 7, epochs=3) == Length(3, None, None, None, 7)
    assert plan(LONG, 7, steps=3, eval_steps=2) == Length(None, 3, 2, None, 7)


def test_a_run_says_whether_its_last_validation_was_the_best():
    fit = make_trainer(lr=0.01).fit(make_loader(), make_loader(seed=1), epochs=3)
    assert fit.best_step == fit.step
    assert fit.still_improving
    worse = make_trainer(lr=0.0).fit(make_loader(), make_loader(seed=1), epochs=3)
    assert worse.best_step < worse.step
    assert not worse.still_improving
    assert not make_trainer().fit(make_loader(), make_loader(seed=1), epochs=1).still_improving


def test_training_from_python_returns_the_network_its_metrics_and_its_folder(tmp_path):
    settings = {"data": "multidigits(train=64, val=32, test=32)", "batch_size": 16}
    result = mtlkit.train(settings, method="rotograd", epochs=3, output=tmp_path / "run", progress=False)
    assert result.folder == tmp_path / "run"
    assert {"left", "right"} < set(result.metrics)
    assert result.metrics == json.loads((tmp_path / "run" / "test.json").read_text())
    facts = json.loads((tmp_path / "run" / "model.json").read_text())["trained"]
    assert facts["still_improving"] == result.fit.still_improving
    best = load_checkpoint(tmp_path / "run" / "checkpoints" / "best.pt")["model"]
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, best[name]), name
    more = mtlkit.train(tmp_path / "run" / "config.yaml", epochs=4, resume="auto", progress=False)
    assert more.fit.epoch == 4


def test_a_wrong_setting_from_python_is_named_with_the_right_one():
    with pytest.raises(mtlkit.MtlkitError, match="did you mean 'lr'"):
        mtlkit.train(data="multidigits", learning_rate=0.1)
