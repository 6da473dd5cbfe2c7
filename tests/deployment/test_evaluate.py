"""Metrics of a trained network on labeled samples."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest

import mtlkit
from mtlkit.cli import main
from mtlkit.data import DataError
from mtlkit.data.table.splitting import split_by_share
from mtlkit.errors import MtlkitError
from tests.deployment.people import people


def test_the_test_rows_of_a_run_give_its_test_results(trained_run, tmp_path):
    frame = people()
    rows = split_by_share(len(frame), {"val": 0.2, "test": 0.2}, 0)["test"]  # as the run did
    frame.iloc[rows].to_csv(tmp_path / "test.csv", index=False)
    found = mtlkit.load(trained_run).evaluate(tmp_path / "test.csv", batch_size=11)
    for task, expected in json.loads((trained_run / "test.json").read_text()).items():
        for metric, value in expected.items():
            if metric != "loss":
                assert found[task][metric] == pytest.approx(value, rel=1e-4), (task, metric)
    assert found["grade"]["labels"] == len(rows)
    assert found["likes"]["labels"] == 2 * len(rows)


def test_rmse_and_r2_are_those_of_the_predictions_in_their_unit(trained_run):
    from sklearn.metrics import r2_score, root_mean_squared_error

    frame, model = people(80, seed=5), mtlkit.load(trained_run)
    predicted = model.predict(frame)["height"]
    found = model.evaluate(frame)["height"]
    assert found["rmse"] == pytest.approx(root_mean_squared_error(frame["height"], predicted), rel=1e-4)
    assert found["r2"] == pytest.approx(r2_score(frame["height"], predicted), rel=1e-4)


def test_missing_labels_and_columns_are_left_out(trained_run):
    frame, model = people(40, seed=6), mtlkit.load(trained_run)
    frame["height"] = np.where(np.arange(40) < 10, frame["height"], np.nan)
    found = model.evaluate(frame.drop(columns=["tea"]))
    assert set(found) == {"rich", "grade", "height"}
    assert found["height"]["labels"] == 10
    assert found["height"]["rmse"] == pytest.approx(model.evaluate(frame[:10])["height"]["rmse"])


def test_what_cannot_be_evaluated_is_named(trained_run):
    frame, model = people(6), mtlkit.load(trained_run)
    with pytest.raises(DataError, match=r"none of the target columns 'grade', 'height', 'jazz'"):
        model.evaluate(frame[["age", "job", "hours"]])
    with pytest.raises(DataError, match=r"2 cells of the target 'grade'.*'z'.*classes a, b, c"):
        model.evaluate(frame.assign(grade=["z", "z", "a", "b", "c", None]))
    with pytest.raises(DataError, match=r"target 'height'.*'tall'.*numbers"):
        model.evaluate(frame.assign(height=["tall", *["150"] * 5]))
    model.preprocessing = None
    with pytest.raises(MtlkitError, match="no preprocessing"):
        model.evaluate(frame)


def test_the_command_prints_every_metric_and_writes_them(trained_run, tmp_path, capsys):
    people(50, seed=7).to_csv(tmp_path / "new.csv", index=False)
    arguments = [str(trained_run), "--input", str(tmp_path / "new.csv")]
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *arguments, "--output", str(tmp_path / "scores.csv")])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    scores = mtlkit.load(trained_run).evaluate(tmp_path / "new.csv")
    for task, values in scores.items():
        assert task in shown
        for metric, value in values.items():
            assert metric in shown
            if metric != "labels":
                assert f"{value:.4g}" in shown
    table = pandas.read_csv(tmp_path / "scores.csv")
    assert list(table) == ["task", "metric", "value"]
    assert len(table) == sum(map(len, scores.values()))
