"""From a run's folder back to the network that was trained."""

from __future__ import annotations

import json

import pytest
import torch

import mtlkit
from mtlkit.config.yaml_files import read_yaml
from mtlkit.data.table.splitting import split_by_share
from mtlkit.deployment.model import LoadedModel
from mtlkit.errors import MtlkitError, SpecError, UsageError
from mtlkit.tasks import create_task, list_tasks
from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import run as run_training
from mtlkit.training.record import describe_task, restore_task
from tests.deployment.people import people, train, write_people


def test_the_best_weights_are_loaded_without_the_data(trained_run):
    model = mtlkit.load(trained_run)
    assert isinstance(model, torch.nn.Module)
    assert not any(module.training for module in model.modules())
    best = torch.load(trained_run / "checkpoints" / "best.pt", weights_only=True)
    for key, value in best["model"].items():
        assert torch.equal(model.network.state_dict()[key], value), key
    assert model.record["trained"]["best_step"] == best["position"]["step"]
    predictions = model(model.example(5))
    assert {task: tuple(out.shape) for task, out in predictions.items()} == {
        "rich": (5, 1),
        "grade": (5, 3),
        "height": (5, 1),
        "likes": (5, 2),
    }


def test_a_loaded_network_has_the_test_results_of_its_run(trained_run):
    frame = people()
    rows = split_by_share(len(frame), {"val": 0.2, "test": 0.2}, 0)["test"]  # as the run did
    truth = frame.iloc[rows].reset_index()
    model = mtlkit.load(trained_run)
    predicted = model.predict(truth)
    told = json.loads((trained_run / "test.json").read_text())
    for task in ("rich", "grade"):
        assert (predicted[task] == truth[task]).mean() == pytest.approx(told[task]["accuracy"])
    error = (predicted["height"] - truth["height"]).abs().mean()  # in its own unit
    assert error == pytest.approx(told["height"]["mae"] * model.tasks[2].deviations[0], rel=1e-4)


def test_tasks_know_their_kinds_classes_and_units(trained_run):
    rich, grade, height, likes = mtlkit.load(trained_run).tasks
    assert (rich.kind, rich.classes) == ("binary", ("no", "yes"))
    assert (grade.kind, grade.classes) == ("classification", ("a", "b", "c"))
    assert height.kind == "regression"
    assert height.means[0] == pytest.approx(people()["height"].mean(), rel=0.05)
    assert (likes.kind, likes.classes) == ("multilabel", ("tea", "jazz"))


@pytest.mark.parametrize("kind", list_tasks())
def test_every_kind_of_task_survives_its_description(kind):
    options = {"classification": {"classes": 4}, "segmentation": {"classes": ["sky", "road"]}}
    options |= {
        "multilabel": {"labels": 3},
        "regression": {"outputs": 2},
        "binary": {"classes": ["f", "m"]},
    }
    task = create_task(kind, "t", **options.get(kind, {}))
    by_hand = create_task(kind, "t", **options.get(kind, {}))
    by_hand.spec = ""  # as if its class had been called
    for one in (task, by_hand):
        again = restore_task(json.loads(json.dumps(describe_task(one))))
        assert type(again) is type(task)
        assert (again.outputs, again.classes) == (task.outputs, task.classes)


def test_a_task_with_a_loss_of_its_own_keeps_what_predictions_need():
    task = mtlkit.Task("t", torch.nn.functional.huber_loss, outputs=2, classes=["a", "b"])
    again = restore_task(describe_task(task))
    assert (again.kind, again.outputs, again.classes) == ("custom", 2, ("a", "b"))
    with pytest.raises(UsageError, match="Python code"):
        again.loss(torch.zeros(1), torch.zeros(1))


def test_a_run_on_images_is_loaded_too(tmp_path):
    settings = {"data": "multidigits(train=64, val=16, test=16)", "steps": 2, "output": str(tmp_path)}
    run_training(TrainConfig.make(settings, "test"), progress=False)
    model = mtlkit.load(tmp_path)
    assert model.preprocessing is None
    image = mtlkit.load_dataset(settings["data"]).test[0][0]
    assert model.example(2).shape == (2, *image.shape)
    assert set(model(image[None])) == {task.name for task in model.tasks}
    assert set(mtlkit.fuse(model)(image[None])) == {task.name for task in model.tasks}


def test_the_runs_of_a_comparison_are_loaded_if_their_weights_were_kept(tmp_path):
    from mtlkit.experiments.jobs import Job, run_job

    table = tmp_path / "people.csv"
    write_people(table)
    settings = {"data": f"table(file='{table}', targets=[rich, grade])", "steps": 3}

    def run(label: str, **options):
        job = Job(str(tmp_path / label), label, 0, {**settings, "method": "sum"}, **options)
        assert run_job(job).error == ""
        return tmp_path / label

    both = mtlkit.load(run("both", keep_weights=True, extra_capacity={"size": 8}))
    assert "network.heads.rich.0.matrix" in both.state_dict()
    alone = mtlkit.load(run("alone", keep_weights=True, task="grade"))
    assert [task.name for task in alone.tasks] == ["grade"]
    assert alone(alone.example(4))["grade"].shape == (4, 3)
    with pytest.raises(
        MtlkitError, match=r"did not keep its weights; compare again with --keep-weights"
    ):
        mtlkit.load(run("forgotten"))
    for exported in (both, alone):
        assert mtlkit.export(exported, tmp_path / "net.safetensors").difference < 1e-5


def test_what_cannot_be_loaded_is_reported(run, tmp_path):
    with pytest.raises(MtlkitError, match=r"there is no folder .*nowhere"):
        mtlkit.load(tmp_path / "nowhere")
    with pytest.raises(MtlkitError, match=r"holds no run of mtlkit"):
        mtlkit.load(tmp_path)
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(MtlkitError, match=r"is a comparison; give the folder of one of its runs"):
        mtlkit.load(tmp_path)
    with pytest.raises(SpecError, match=r"device 'gpu' cannot be used"):
        mtlkit.load(run, device="gpu")
    record = run / "model.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "format": 2, "version": "9.1"}))
    with pytest.raises(MtlkitError, match=r"written by mtlkit 9\.1.*pip install -U mtlkit"):
        mtlkit.load(run)
    record.write_text(json.dumps({**content, "architecture": "hard_sharing(backbone=mlp(3, inputs=4))"}))
    with pytest.raises(MtlkitError, match=r"do not fit the network"):
        mtlkit.load(run)
    record.write_text("{")
    with pytest.raises(MtlkitError, match=r"does not describe a network"):
        mtlkit.load(run)
    record.write_text(json.dumps(content))
    (run / "preprocessing.json").rename(run / "moved.json")
    with pytest.raises(MtlkitError, match=r"lost its preprocessing"):
        mtlkit.load(run)
    (run / "moved.json").rename(run / "preprocessing.json")
    (run / "checkpoints" / "best.pt").unlink()
    with pytest.raises(MtlkitError, match=r"has lost its weights"):
        mtlkit.load(run)
    record.unlink()
    with pytest.raises(MtlkitError, match=r"has no model\.json"):
        mtlkit.load(run)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["weights"], None),
        (["preprocessing"], 3),
        (["preprocessing"], ""),
        (["plugins"], 1),
        (["trained"], "yes"),
        (["predicts"], ["nobody"]),
        (["predicts"], ["rich", "grade"]),
        (["predicts"], None),
        (["tasks"], None),
        (["tasks", 0], {"name": "rich"}),
        (["tasks", 0, "outputs"], "one"),
        (["tasks", 2, "means"], "abc"),
        (["tasks", 1, "classes"], [{}]),
    ],
)
def test_a_record_that_somebody_changed_is_refused_by_name(run, path, value):
    record = run / "model.json"
    content = json.loads(record.read_text())
    entry = content
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    record.write_text(json.dumps(content))
    with pytest.raises(MtlkitError, match=rf"{path[0]}|lost its|predicts"):
        mtlkit.load(run)


def test_a_damaged_safetensors_file_is_refused_by_name(run, tmp_path):
    path = mtlkit.export(run, tmp_path / "net.safetensors").path
    for content in (path.read_bytes()[:500], b"junk", b""):
        path.write_bytes(content)
        with pytest.raises(MtlkitError, match=r"net\.safetensors is damaged"):
            mtlkit.load(path)


def test_an_unfinished_run_gives_its_best_weights_so_far(run):
    record = run / "model.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "trained": None}))
    with pytest.warns(UserWarning, match=r"not finished; these are its best weights so far"):
        assert isinstance(mtlkit.load(run), LoadedModel)
    (run / "checkpoints" / "best.pt").unlink()
    with pytest.raises(MtlkitError, match=r"stopped before its first validation.*--resume auto"):
        mtlkit.load(run)


def test_a_killed_run_says_so_and_a_resumed_one_does_not(tmp_path, monkeypatch):
    from mtlkit.training.trainer import Trainer

    write_people(tmp_path / "people.csv")
    fit = Trainer.fit

    def stopped(self, *args, **options):
        fit(self, *args, **{**options, "epochs": 1})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "fit", stopped)
        train(tmp_path / "run", tmp_path / "people.csv", method="sum")
    with pytest.warns(UserWarning, match="not finished"):
        mtlkit.load(tmp_path / "run")
    config = TrainConfig.make(read_yaml(tmp_path / "run" / "config.yaml"), "again")
    run_training(config, resume="auto", progress=False)
    mtlkit.load(tmp_path / "run")
