"""Predictions for raw rows: class names, probabilities, and numbers in their own unit."""

from __future__ import annotations

import gzip

import numpy as np
import pandas
import pytest
import torch

import mtlkit
from mtlkit.data import DataError
from mtlkit.data.preprocessing import (
    Preprocessing,
    preprocessings,
    read_preprocessing,
    register_preprocessing,
)
from mtlkit.deployment.model import LoadedModel
from mtlkit.deployment.predicting import _as_cells, predict
from mtlkit.errors import MtlkitError, SpecError, UnknownNameError
from mtlkit.tasks import Task
from tests.deployment.people import people, train


def test_raw_rows_become_words_probabilities_and_numbers(trained_run, tmp_path):
    frame = people(57, seed=1)
    frame.drop(columns=["rich", "grade", "height", "tea", "jazz"]).to_csv(
        tmp_path / "new.csv", index=False
    )
    told = []
    number = predict(
        trained_run,
        tmp_path / "new.csv",
        tmp_path / "out.csv",
        keep=["id"],
        batch_size=20,
        report=lambda *at: told.append(at),
    )
    assert number == 57
    assert told == [(20, 57), (40, 57), (57, 57)]
    found = pandas.read_csv(tmp_path / "out.csv")
    assert list(found) == [
        "id", "rich", "rich_probability_yes",
        "grade", "grade_probability_a", "grade_probability_b", "grade_probability_c",
        "height", "likes", "likes_probability_tea", "likes_probability_jazz",
    ]  # fmt: skip
    assert list(found["id"]) == list(frame["id"])
    assert (found["rich"] == np.where(found["rich_probability_yes"] > 0.5, "yes", "no")).all()
    probabilities = found[[f"grade_probability_{name}" for name in "abc"]]
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert (found["grade"] == np.array(list("abc"))[probabilities.to_numpy().argmax(axis=1)]).all()
    assert (found["grade"] == frame["grade"]).mean() > 0.7
    assert (found["height"] - frame["height"]).abs().mean() < 7  # centimetres; they deviate by 10
    assert "mtlkit" not in (tmp_path / "out.csv").read_text()


def test_columns_agree_with_the_network_s_own_outputs(trained_run):
    model = mtlkit.load(trained_run)
    frame = people(9, seed=2)
    with torch.no_grad():
        raw = model(model.preprocessing.inputs(frame))
    found = model.predict(frame)
    assert np.allclose(found["rich_probability_yes"], torch.sigmoid(raw["rich"][:, 0]))
    assert np.allclose(found["grade_probability_b"], raw["grade"].softmax(1)[:, 1])
    height = model.tasks[2]
    assert np.allclose(found["height"], raw["height"][:, 0] * height.deviations[0] + height.means[0])
    assert np.allclose(found["likes_probability_jazz"], torch.sigmoid(raw["likes"][:, 1]))
    chosen = [name for name, logit in zip(["tea", "jazz"], raw["likes"][0], strict=True) if logit > 0]
    assert found["likes"][0] == (", ".join(chosen) or "none")


def test_new_words_missing_values_and_given_targets_are_fine(trained_run, tmp_path):
    (tmp_path / "new.csv").write_text(
        "job,age,hours,rich\npilot,30,?,yes\n,NA,41.5,\n", encoding="utf-8"
    )
    predict(trained_run, tmp_path / "new.csv", tmp_path / "out.csv.gz", keep=["all"])
    with gzip.open(tmp_path / "out.csv.gz", "rt") as file:
        found = pandas.read_csv(file)
    assert list(found)[:5] == ["job", "age", "hours", "rich_given", "rich"]
    assert found["job"].tolist()[0] == "pilot"
    assert np.isfinite(found["height"]).all()


def test_what_cannot_be_predicted_is_reported_and_nothing_is_written(trained_run, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    out.write_text("old")
    frame = people(5)
    frame.drop(columns=["age", "job"]).to_csv(new, index=False)
    with pytest.raises(
        DataError, match=r"columns that .*new\.csv lacks: 'age', 'job'; given are: id, hours"
    ):
        predict(trained_run, new, out)
    with pytest.raises(DataError, match=r"there is no file .*nowhere"):
        predict(trained_run, tmp_path / "nowhere.csv", out)
    frame.to_csv(new, index=False)
    with pytest.raises(UnknownNameError, match=r"column of .* 'name'"):
        predict(trained_run, new, out, keep=["name"])
    with pytest.raises(SpecError, match=r"as \.csv or \.csv\.gz, not 'out\.xlsx'"):
        predict(trained_run, new, tmp_path / "out.xlsx")
    for size in (0, -1):
        with pytest.raises(SpecError, match=rf"batch size must be 1 or more, not {size}"):
            predict(trained_run, new, out, batch_size=size)
        with pytest.raises(SpecError, match=rf"batch size must be 1 or more, not {size}"):
            mtlkit.load(trained_run).predict(frame, batch_size=size)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(trained_run, new, out, report=stop)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]


def test_without_a_header_all_columns_must_be_there(tmp_path):
    table = tmp_path / "people.csv"
    frame = people()[["rich", "age", "job"]]  # the target comes first
    frame.to_csv(table, index=False, header=False)
    data = f"table(file='{table}', header=False, targets={{rich: binary(column=1)}})"
    run = train(tmp_path / "run", table, data=data, method="sum", steps=3, epochs=None)
    frame[["age", "job"]].to_csv(tmp_path / "new.csv", index=False, header=False)
    with pytest.raises(DataError, match=r"has 2 columns, and the training table has 3\."):
        predict(run, tmp_path / "new.csv", tmp_path / "out.csv")
    frame.assign(rich="").to_csv(tmp_path / "new.csv", index=False, header=False)
    assert predict(run, tmp_path / "new.csv", tmp_path / "out.csv") == 240


def test_several_numbers_keep_their_names_and_units():
    task = Task.regression("size", 2)
    task.columns, task.means, task.deviations = ["width", "height"], [10.0, 20.0], [2.0, 4.0]
    found = task.decode(torch.tensor([[0.0, 1.0], [-1.0, 0.5]]))
    assert {name: list(column) for name, column in found.items()} == {
        "size_width": [10.0, 8.0],
        "size_height": [24.0, 22.0],
    }


def test_a_large_mean_leaves_the_digits_of_the_prediction(tmp_path):
    task = Task.regression("second")
    task.means, task.deviations = [1700001883.0], [1041.0]
    column = task.decode(torch.tensor([[0.0], [1.0], [0.001]]))["second"]
    assert np.allclose(column, [1700001883.0, 1700002924.0, 1700001884.041], rtol=0, atol=1e-3)
    cells = _as_cells(column, "second", 0, tmp_path / "out.csv")
    assert np.allclose(cells, column, rtol=0, atol=0.5)
    assert _as_cells(np.float32([0.1]), "share", 0, tmp_path / "out.csv") == [0.1]


def test_kinds_with_maps_decode_to_maps():
    assert Task.segmentation("s", 3).decode(torch.randn(2, 3, 4, 5))["s"].shape == (2, 4, 5)
    assert Task.depth("d").decode(torch.randn(2, 1, 4, 5))["d"].shape == (2, 4, 5)
    normals = Task.normals("n").decode(torch.randn(2, 3, 4, 5))["n"]
    assert np.allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-5)


class Names(Preprocessing):
    """A stand-in for images: names of files, each an image as bright as its name is long."""

    identity = ("file",)

    def read(self, path):
        return pandas.DataFrame({"file": path.read_text().split()})

    def inputs(self, rows):
        return torch.stack([torch.full((3, 8, 8), float(len(name))) for name in rows["file"]])

    def to_json(self):
        return '{"kind": "names"}'

    @classmethod
    def from_json(cls, text):
        return cls()


@pytest.fixture
def names_kind():
    with preprocessings.temporary():
        register_preprocessing("names")(Names)
        yield


def test_other_kinds_of_preprocessing_plug_in_and_maps_are_files(names_kind, tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            return {"seg": torch.stack([7 - x[:, 0], x[:, 0]], dim=1)}

    model = LoadedModel(
        Net(), [Task.segmentation("seg", 2)], read_preprocessing('{"kind": "names"}'), {}
    )
    (tmp_path / "list.txt").write_text("a\nlonger\n")
    predict(model, tmp_path / "list.txt", tmp_path / "out.csv", batch_size=1)
    found = pandas.read_csv(tmp_path / "out.csv")
    assert found.to_dict("list") == {
        "file": ["a", "longer"],
        "seg": ["out_maps/seg_000000.npy", "out_maps/seg_000001.npy"],
    }
    assert [np.load(tmp_path / name).tolist() for name in found["seg"]] == [
        [[number] * 8] * 8 for number in (0, 1)
    ]
    with pytest.raises(UnknownNameError, match="kind of preprocessing 'sounds'"):
        read_preprocessing('{"kind": "sounds"}')
    with pytest.raises(DataError, match="not a preprocessing"):
        read_preprocessing("[]")


def test_a_network_without_preprocessing_says_what_to_do_instead(trained_run, tmp_path):
    model = mtlkit.load(trained_run)
    model.preprocessing = None
    with pytest.raises(MtlkitError, match=r"call the network itself"):
        predict(model, tmp_path / "new.csv", tmp_path / "out.csv")


def test_text_that_a_spreadsheet_would_run_is_escaped(trained_run, tmp_path):
    frame = people(5).assign(id=["=1+1", "@SUM(A1)", "+cmd", "-2.5", "p-4"], **{"=note": "x"})
    frame.to_csv(tmp_path / "new.csv", index=False)
    predict(trained_run, tmp_path / "new.csv", tmp_path / "out.csv", keep=["id", "=note", "age"])
    found = pandas.read_csv(tmp_path / "out.csv", dtype=str)
    assert list(found)[:3] == ["id", "'=note", "age"]
    assert found["id"].tolist() == ["'=1+1", "'@SUM(A1)", "'+cmd", "-2.5", "p-4"]
    assert found["age"].astype(int).tolist() == frame["age"].tolist()


def test_negative_predictions_stay_numbers(tmp_path, names_kind):
    class Net(torch.nn.Module):
        def forward(self, x):
            return {"level": -x[:, 0, :1, 0]}

    model = LoadedModel(Net(), [Task.regression("level")], read_preprocessing('{"kind": "names"}'), {})
    (tmp_path / "list.txt").write_text("ab\n")
    predict(model, tmp_path / "list.txt", tmp_path / "out.csv")
    assert pandas.read_csv(tmp_path / "out.csv")["level"].tolist() == [-2.0]
