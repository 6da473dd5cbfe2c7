import copy
import math
import os
import signal
import threading

import accelerate
import pytest
import torch
from torch import nn

import mtlkit
from mtlkit import Task
from mtlkit.errors import ConfigError, SpecError, UnknownNameError, UsageError
from mtlkit.training import CheckpointError, Interrupted, load_checkpoint, save_checkpoint
from mtlkit.training.accelerators import choose_device
from mtlkit.training.evaluation import score
from tests.training.small_problem import TASKS, SmallNet, flat, make_loader, make_trainer, records

pytestmark = pytest.mark.filterwarnings("ignore:no validation set")


def test_training_equals_a_loop_written_by_hand():
    trainer = make_trainer("pcgrad")
    trainer.fit(make_loader(shuffle=False), epochs=3)
    torch.manual_seed(0)
    model = SmallNet("pcgrad")
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=0.02))
    for _ in range(3):
        for x, targets in make_loader(shuffle=False):
            predictions = model(x)
            losses = {task.name: task.loss(predictions[task.name], targets[task.name]) for task in TASKS}
            optimizer.zero_grad()
            model.method.total(losses).backward()
            optimizer.step()
    assert torch.equal(flat(trainer.model), flat(model))


def test_validation_improves_and_its_metrics_are_returned():
    result = make_trainer().fit(make_loader(200), make_loader(100, seed=1), epochs=15)
    assert result.validation["label"]["accuracy"] > 0.8
    assert result.validation["value"]["mse"] < 0.1
    assert result.epoch == 15
    assert result.step == 15 * 25


def test_steps_end_training_within_an_epoch(tmp_path):
    result = make_trainer(output=tmp_path).fit(make_loader(), make_loader(seed=1), steps=7)
    assert (result.step, result.epoch) == (7, 1)
    assert load_checkpoint(tmp_path / "checkpoints" / "step-000000007.pt")["position"]["batch"] == 2


def test_accumulated_batches_equal_one_large_batch():
    small, large = make_trainer(gradient_accumulation_steps=2), make_trainer()
    small.fit(make_loader(batch=4, shuffle=False), epochs=2)
    large.fit(make_loader(batch=8, shuffle=False), epochs=2)
    assert small.step == large.step
    assert torch.allclose(flat(small.model), flat(large.model), atol=1e-6)


def test_clipping_bounds_the_step():
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = flat(model)
    mtlkit.Trainer(model, TASKS, optimizer, max_grad_norm=1e-3, progress=False).fit(
        make_loader(), steps=1
    )
    assert (flat(model) - before).norm() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_schedulers_step_when_they_are_told(every):
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = mtlkit.Trainer(
        model,
        TASKS,
        optimizer,
        scheduler=scheduler,
        scheduler_every=every,
        gradient_accumulation_steps=2,
        progress=False,
    )
    trainer.fit(make_loader(size=32), epochs=2)
    assert optimizer.param_groups[0]["lr"] == 1e-3 * 0.5 ** (4 if every == "step" else 2)


def test_missing_labels_are_left_out_of_the_loss():
    trainer = make_trainer("mgda")
    result = trainer.fit(make_loader(missing=0.7), epochs=2)
    assert result.step == 10
    assert torch.isfinite(flat(trainer.model)).all()


def test_a_task_without_any_label_keeps_its_head():
    trainer = make_trainer("pcgrad")
    before = flat(trainer.model.heads["label"])
    with pytest.warns(UserWarning, match="no batch so far has a label of 'label'"):
        trainer.fit(make_loader(missing=1.1), epochs=1)
    assert torch.equal(before, flat(trainer.model.heads["label"]))
    metrics = trainer.evaluate(make_loader(missing=1.1))
    assert math.isnan(metrics["label"]["accuracy"])
    assert math.isnan(metrics["label"]["loss"])
    assert metrics["value"]["mse"] > 0


def test_the_best_checkpoint_is_that_of_the_best_validation(tmp_path):
    trainer = make_trainer(lr=0.05, output=tmp_path, best_by="value/mse", save_total_limit=1)
    result = trainer.fit(make_loader(24), make_loader(50, seed=1), epochs=12)
    validations = records(tmp_path, "validation")
    best = min(validations, key=lambda record: record["tasks"]["value"]["mse"])
    assert result.best_step == best["step"]
    assert trainer.load_best()
    metrics = trainer.evaluate(make_loader(50, seed=1))
    assert metrics["value"]["mse"] == pytest.approx(best["tasks"]["value"]["mse"])


def test_the_log_holds_mean_losses_over_the_labels(tmp_path):
    trainer = make_trainer(lr=0.0, output=tmp_path, logging_steps=5)
    loader = make_loader(missing=0.6)
    trainer.fit(loader, epochs=1)
    (line,) = records(tmp_path, "train")
    assert line["batches"] == 5
    data, known = loader.dataset, loader.dataset.known
    with torch.no_grad():
        predictions = trainer.model(data.x)
    label = nn.functional.cross_entropy(predictions["label"][known], data.labels[known])
    value = nn.functional.mse_loss(predictions["value"], data.values)
    assert line["losses"] == pytest.approx({"label": float(label), "value": float(value)}, rel=1e-5)


def test_without_validation_the_last_is_kept_and_it_says_so(tmp_path):
    trainer = make_trainer(output=tmp_path)
    with pytest.warns(UserWarning, match="no validation set: the last checkpoint counts"):
        result = trainer.fit(make_loader(), epochs=2)
    assert result.best_step is None
    assert load_checkpoint(result.best_checkpoint)["position"]["step"] == 10
    assert records(tmp_path, "note")


def test_early_stop_ends_a_run_that_no_longer_improves():
    trainer = make_trainer(lr=0.0, early_stopping_patience=2)
    result = trainer.fit(make_loader(), make_loader(seed=1), epochs=50)
    assert result.stopped_early
    assert result.epoch == 3


def test_pivrg_is_given_how_far_each_task_is_behind_its_single_task_model():
    alone = {"label": {"accuracy": 0.8}, "value": {"mse": 0.5, "mae": 0.4}}
    trainer = make_trainer("pivrg", single_task_metrics=alone)
    found = trainer.fit(make_loader(), make_loader(seed=1), epochs=1).validation
    label = 100 * (0.8 - found["label"]["accuracy"]) / 0.8
    value = 100 * ((found["value"]["mse"] - 0.5) / 0.5 + (found["value"]["mae"] - 0.4) / 0.4) / 2
    assert trainer.method.parts[-1].scores.tolist() == pytest.approx([label, value])
    with pytest.raises(UnknownNameError, match="mea"):
        make_trainer("pivrg", single_task_metrics={"value": {"mea": 0.4}})


def test_validation_does_not_change_training():
    alone, watched = make_trainer(dropout=0.5), make_trainer(dropout=0.5, eval_steps=2)
    for trainer, validation in ((alone, None), (watched, make_loader(seed=1))):
        torch.manual_seed(7)
        trainer.fit(make_loader(), validation, epochs=2)
    assert torch.equal(flat(alone.model), flat(watched.model))


def test_resumed_training_goes_on_exactly(tmp_path):
    options = {"dropout": 0.3, "method": "rotograd", "gradient_accumulation_steps": 2}
    whole = make_trainer(**options)
    torch.manual_seed(5)
    whole.fit(make_loader(44), epochs=4)
    first = make_trainer(**options, output=tmp_path)
    torch.manual_seed(5)
    first.fit(make_loader(44), steps=4)
    second = make_trainer(**options, output=tmp_path)
    second.fit(make_loader(44), epochs=4, resume="auto")
    assert torch.equal(flat(whole.model), flat(second.model))


def test_a_run_ends_with_a_validation_and_weights_to_use(tmp_path):
    for output in (tmp_path, None):
        trainer = make_trainer(output=output, eval_steps=1000)
        result = trainer.fit(make_loader(), make_loader(seed=1), epochs=1)
        assert result.best_step == trainer.step
        assert result.validation
    assert load_checkpoint(tmp_path / "checkpoints" / "best.pt")["position"]["best_step"] == 5


def test_a_run_that_goes_on_from_an_older_checkpoint_keeps_its_own(tmp_path):
    options = {"output": tmp_path, "save_steps": 1, "save_total_limit": 3}
    make_trainer(**options).fit(make_loader(), steps=4)
    folder = tmp_path / "checkpoints"
    again = make_trainer(**{**options, "save_total_limit": 1})
    again.fit(make_loader(), steps=3, resume=folder / "step-000000002.pt")
    names = {path.name for path in folder.iterdir()}
    abandoned = {"best.pt", "step-000000003.pt", "step-000000004.pt"}
    assert names == {"best.pt", "step-000000003.pt", *(f"{name}.abandoned" for name in abandoned)}


def test_a_run_killed_between_its_best_checkpoint_and_the_link_to_it_keeps_the_best_weights(tmp_path):
    options = {"output": tmp_path, "best_by": "loss", "save_total_limit": 2}
    result = make_trainer(**options).fit(make_loader(), make_loader(seed=1), epochs=2)
    assert result.best_step == 10
    folder = tmp_path / "checkpoints"
    (folder / "best.pt").unlink()
    os.link(folder / "step-000000005.pt", folder / "best.pt")  # as it was before the second validation
    again = make_trainer(**options).fit(make_loader(), make_loader(seed=1), epochs=2, resume="auto")
    assert again.best_step == 10
    assert load_checkpoint(again.best_checkpoint)["position"]["step"] == 10


def test_a_run_that_another_number_of_processes_resumes_says_so(tmp_path):
    make_trainer(output=tmp_path).fit(make_loader(), steps=2)
    (path,) = (tmp_path / "checkpoints").glob("step-*.pt")
    state = load_checkpoint(path)
    save_checkpoint(path, {**state, "rng": state["rng"] * 2})
    with pytest.warns(UserWarning, match=r"of 2 process\(es\), and this run has 1"):
        make_trainer(output=tmp_path).fit(make_loader(), steps=3, resume="auto")


def test_a_first_score_of_zero_does_not_hide_later_gains():
    tasks = [Task.binary("rare"), Task.regression("value")]
    first: dict[str, float] = {}
    reached = [
        score(
            {"rare": {"f1": f1, "loss": 1.0}, "value": {"mse": mse, "loss": mse}},
            tasks,
            "improvement",
            first,
        )
        for f1, mse in ((0.0, 1.0), (0.02, 0.90), (0.80, 0.91), (0.0, 0.90))
    ]
    assert reached[0] == min(reached)
    assert reached[2] == max(reached)
    assert reached[1] > reached[3]


@pytest.mark.parametrize("by", ["loss", "improvement"])
def test_a_validation_that_diverged_is_never_the_best(by):
    tasks = [Task.regression("a"), Task.regression("b")]
    good, bad = ({"a": {"loss": 1.0, "mse": 1.0}, "b": {"loss": x, "mse": x}} for x in (0.5, math.inf))
    assert score(bad, tasks, by, {}) < score(good, tasks, by, {})


class Normed(nn.Module):
    """BatchNorm before a linear layer; one task."""

    def __init__(self):
        super().__init__()
        self.method = mtlkit.create_method("sum", ("value",))
        self.norm, self.layer = nn.BatchNorm1d(2), nn.Linear(2, 1)

    def forward(self, x):
        return {"value": self.layer(self.norm(x))}


def test_a_skipped_step_leaves_no_trace_in_batch_normalization():
    x = torch.randn(12, 2)
    x[5, 0] = math.nan
    samples = [(row, {"value": torch.zeros(1)}) for row in x]
    model = Normed()
    trainer = mtlkit.Trainer(
        model,
        [Task.regression("value")],
        torch.optim.SGD(model.parameters(), lr=0.1),
        on_nonfinite="skip",
    )
    trainer.fit(torch.utils.data.DataLoader(samples, batch_size=4), epochs=2)
    assert torch.isfinite(model.norm.running_mean).all()
    assert model.norm.running_mean.abs().sum() > 0


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_second_pass_is_made_on_the_same_batch_and_counts_once_in_batch_normalization(momentum):
    torch.manual_seed(0)
    x, y = torch.randn(12, 2), torch.randn(12, 1)
    samples = [(row, {"value": target}) for row, target in zip(x, y, strict=True)]
    start, seen, statistics = Normed(), [], []
    for method in ("famo(second_pass=True)", "famo"):  # of one task: their steps are the same
        model = copy.deepcopy(start)
        model.norm.momentum = momentum
        model.method = mtlkit.create_method(method, ("value",))
        model.method.update = seen.append
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = mtlkit.Trainer(model, [Task.regression("value")], optimizer)
        trainer.fit(torch.utils.data.DataLoader(samples, batch_size=4), epochs=2)
        statistics.append({name: buffer.clone() for name, buffer in model.norm.named_buffers()})
    assert len(seen) == 6  # not one without a second pass
    with torch.no_grad():
        last = nn.functional.mse_loss(model.train()(x[8:])["value"], y[8:])
    torch.testing.assert_close(seen[-1]["value"], last)
    for name, value in statistics[0].items():
        assert torch.equal(value, statistics[1][name]), name


def test_the_last_batches_of_an_epoch_are_averaged_over_their_own_number():
    class Offset(nn.Module):
        def __init__(self):
            super().__init__()
            self.method = mtlkit.create_method("sum", ("value",))
            self.offset = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return {"value": self.offset.expand(len(x), 1)}

    model = Offset()
    task = Task("value", lambda prediction, target: -prediction.mean(), outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = mtlkit.Trainer(model, [task], optimizer, gradient_accumulation_steps=2)
    samples = [(torch.zeros(1), {"value": torch.zeros(1)}) for _ in range(3)]
    trainer.fit(torch.utils.data.DataLoader(samples, batch_size=1), epochs=1)
    assert model.offset.item() == pytest.approx(2.0)  # a step of two batches and a step of one


def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path):
    loaders = make_loader(), make_loader(seed=1)
    first = make_trainer(lr=0.0, early_stopping_patience=2, output=tmp_path)
    assert first.fit(*loaders, epochs=50).epoch == 3
    same = make_trainer(lr=0.0, early_stopping_patience=2, output=tmp_path).fit(
        *loaders, epochs=50, resume="auto"
    )
    assert (same.epoch, same.stopped_early) == (3, True)
    assert same.validation
    more = make_trainer(lr=0.0, early_stopping_patience=4, output=tmp_path).fit(
        *loaders, epochs=50, resume="auto"
    )
    assert more.epoch == 5


def test_a_run_that_goes_on_from_another_folder_has_its_best_weights(tmp_path):
    loaders = make_loader(), make_loader(seed=1)
    make_trainer(output=tmp_path / "one", eval_steps=5).fit(*loaders, epochs=1)
    path = tmp_path / "one" / "checkpoints" / "step-000000005.pt"
    result = make_trainer(output=tmp_path / "two").fit(*loaders, epochs=1, resume=path)
    best = load_checkpoint(tmp_path / "two" / "checkpoints" / "best.pt")
    assert best["position"]["step"] == result.best_step == 5
    assert records(tmp_path / "two", "run")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    make_trainer(output=tmp_path).fit(make_loader(), steps=1)
    with pytest.raises(UsageError, match="already contains a run"):
        make_trainer(output=tmp_path).fit(make_loader(), steps=1)


def test_a_checkpoint_of_another_run_does_not_fit(tmp_path):
    make_trainer("pcgrad", output=tmp_path).fit(make_loader(), steps=1)
    with pytest.raises(CheckpointError, match="method 'pcgrad', but this one has 'mgda'"):
        make_trainer("mgda", output=tmp_path).fit(make_loader(), steps=2, resume="auto")


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    trainer = make_trainer(output=tmp_path, save_steps=1, save_total_limit=3)
    trainer.fit(make_loader(), steps=3)
    path = tmp_path / "checkpoints" / "step-000000003.pt"
    path.write_bytes(path.read_bytes()[:500])
    again = make_trainer(output=tmp_path, save_steps=1)
    with pytest.warns(RuntimeWarning, match="truncated"):
        again.fit(make_loader(), steps=3, resume="auto")
    assert torch.equal(flat(trainer.model), flat(again.model))


def test_ctrl_c_finishes_the_step_saves_and_can_be_resumed(tmp_path):
    whole = make_trainer(dropout=0.2)
    torch.manual_seed(5)
    whole.fit(make_loader(), epochs=3)
    trainer = make_trainer(dropout=0.2, output=tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    seen = []

    def press(*_):
        seen.append(1)
        if len(seen) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    hook = trainer.model.register_forward_hook(press)
    torch.manual_seed(5)
    with pytest.raises(Interrupted) as stop:
        trainer.fit(make_loader(), epochs=3)
    hook.remove()
    assert stop.value.step == 7
    assert stop.value.checkpoint.exists()
    assert signal.getsignal(signal.SIGINT) is handler
    again = make_trainer(dropout=0.2, output=tmp_path)
    again.fit(make_loader(), epochs=3, resume="auto")
    assert torch.equal(flat(whole.model), flat(again.model))


def test_training_in_another_thread_leaves_signals_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(make_trainer().fit(make_loader(), steps=2)))
    thread.start()
    thread.join()
    assert results[0].step == 2


def test_the_monitor_writes_means_of_the_statistics(tmp_path):
    trainer = make_trainer("rotograd", output=tmp_path, logging_steps=5, monitor_steps=1)
    trainer.fit(make_loader(), epochs=2)
    first, second = records(tmp_path, "monitor")
    assert first["samples"] == second["samples"] == 5
    assert set(first["norms"]) == {"label", "value"}
    assert first["cosines"][0][0] == pytest.approx(1)
    assert 0 <= first["conflict"] <= 1
    assert second["rotation_angles"]["label"] > first["rotation_angles"]["label"] > 0
    assert all(-1 <= value <= 1 for value in first["update_cosines"].values())


@pytest.mark.parametrize("precision", ["bf16"])
def test_mixed_precision_learns_as_well(precision):
    result = make_trainer("rotograd", mixed_precision=precision).fit(
        make_loader(200), make_loader(100, seed=1), epochs=8
    )
    assert result.validation["label"]["accuracy"] > 0.7
    assert make_trainer().accelerator.mixed_precision == "no"


def test_any_iterable_of_batches_will_do():
    batches = list(make_loader(shuffle=False))
    trainer, other = (
        make_trainer(gradient_accumulation_steps=2),
        make_trainer(gradient_accumulation_steps=2),
    )
    trainer.fit(batches, epochs=2)
    other.fit(make_loader(shuffle=False), epochs=2)
    assert torch.equal(flat(trainer.model), flat(other.model))


def test_a_model_without_a_method_sums_the_losses():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = SmallNet().backbone
            self.label, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x):
            z = self.net(x)
            return {"label": self.label(z), "value": self.value(z)}

    model = Plain()
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.Adam(model.parameters()), progress=False)
    before = flat(model)
    trainer.fit(make_loader(), epochs=1)
    assert not torch.equal(before, flat(model))


def test_auxiliary_losses_are_added():
    class Pulled(SmallNet):
        def auxiliary_loss(self):
            return 1000 * self.backbone[0].weight.square().sum()

    torch.manual_seed(0)
    model = Pulled()
    before = model.backbone[0].weight.norm()
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.Adam(model.parameters(), lr=0.01), progress=False)
    trainer.fit(make_loader(), epochs=4)
    assert model.backbone[0].weight.norm() < before / 2


@pytest.mark.parametrize("log_with", ["tensorboard", ["tensorboard"]])
def test_tensorboard_gets_the_metrics(tmp_path, log_with):
    trainer = make_trainer(output=tmp_path, log_with=log_with, logging_steps=2)
    trainer.fit(make_loader(), epochs=1)
    assert list(tmp_path.rglob("events.out.tfevents*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nonfinite": "rais"}, "on_nonfinite of Trainer must be one of 'raise', 'skip', not 'rais'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps of Trainer must be 1 or more"),
        ({"max_grad_norm": -1.0}, "max_grad_norm of Trainer must be a number, above 0"),
        ({"monitor_steps": -1}, "monitor_steps of Trainer must be 0 or more"),
        ({"scheduler_every": "batch"}, "scheduler_every of Trainer must be one of 'step', 'epoch'"),
        ({"best_by": "label/acuracy"}, "did you mean 'label/accuracy'"),
        ({"mixed_precision": "bf61"}, "mixed_precision of Trainer must be one of 'no', 'bf16', 'fp16'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(SpecError, match=message):
        make_trainer(**options)


def test_names_instead_of_tasks_are_an_error():
    model = SmallNet()
    with pytest.raises(SpecError, match="needs Task objects"):
        mtlkit.Trainer(model, ["label", "value"], torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(SpecError, match="the method knows the tasks label, value"):
        mtlkit.Trainer(model, [Task.binary("x")], torch.optim.SGD(model.parameters(), lr=1))


def test_a_prediction_that_is_not_there_is_named():
    class Wrong(SmallNet):
        def forward(self, x):
            return {"labels" if k == "label" else k: v for k, v in super().forward(x).items()}

    model = Wrong()
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.SGD(model.parameters(), lr=1), progress=False)
    with pytest.raises(UnknownNameError, match="did you mean 'labels'"):
        trainer.fit(make_loader(), steps=1)


def test_an_optimizer_of_another_model_is_refused():
    optimizer = torch.optim.SGD(SmallNet().parameters(), lr=0.1)
    with pytest.raises(SpecError, match="holds no parameter of the model"):
        mtlkit.Trainer(SmallNet(), TASKS, optimizer)


def test_a_misspelled_target_is_told_after_an_epoch():
    model = SmallNet()
    batches = [(x, {"label": y["label"], "valeu": y["value"]}) for x, y in make_loader()]
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"a label of 'value', so .* named label, valeu$"):
        trainer.fit(batches, epochs=1)


def test_a_class_that_does_not_exist_is_told_with_its_task():
    model = SmallNet()
    batches = [(x, {**y, "label": torch.full_like(y["label"], 7)}) for x, y in make_loader()]
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SpecError, match="the loss of task 'label': Target 7 is out of bounds"):
        trainer.fit(batches, epochs=1)


def test_what_a_given_accelerator_decides_is_refused_elsewhere():
    accelerator = accelerate.Accelerator(cpu=True)
    for name, value in (("mixed_precision", "bf16"), ("log_with", "tensorboard")):
        with pytest.raises(SpecError, match=f"{name} is '{value}'.* accelerator"):
            make_trainer(accelerator=accelerator, **{name: value})


def test_a_gpu_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="torch finds no device 'cuda:2'"):
        choose_device("cuda:2")
