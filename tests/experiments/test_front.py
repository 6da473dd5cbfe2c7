"""The front of one training with preferences, and files at a chosen one."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch

import mtlkit
from mtlkit.cli import main
from mtlkit.errors import MtlkitError, SpecError, UsageError
from mtlkit.experiments.front import front, spread_preferences

DATA = "multidigits(train=64, val=16, test=16)"


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code, capsys.readouterr()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front") / "run"
    mtlkit.train(data=DATA, preference="full", lr=0.01, epochs=2, output=folder, progress=False)
    return folder


def test_front_writes_a_row_per_preference_and_a_page(run, capsys, tmp_path) -> None:
    code, output = call(capsys, "front", run, "--points", 7, "--output", tmp_path)
    assert code == 0
    assert "Hypervolume" in output.out
    table = pandas.read_csv(tmp_path / "front.csv")
    assert len(table) == 7
    assert np.allclose(table.filter(like="preference/").sum(axis=1), 1)
    assert table["on_front"].any()
    assert table["left/loss"].nunique() > 1, "the preference changes the network"
    assert "<!DOCTYPE html>" in (tmp_path / "front.html").read_text()


def test_the_volume_is_above_the_reference_that_was_given(run) -> None:
    worst = {"left": -1, "right": -1, "parity": -1, "digit_sum": 1e4, "pixels": 1e4}
    assert front(run, points=6, split="val", reference=worst).hypervolume > 0


def test_the_preferences_of_a_front_may_be_given(run) -> None:
    found = front(run, points=[[1, 1, 1, 1, 1], [5, 0, 0, 0, 5]], split="val")
    assert np.allclose(found.preferences, [[0.2] * 5, [0.5, 0, 0, 0, 0.5]])
    assert found.main_metrics.shape == (2, 5)
    with pytest.raises(SpecError, match="a column per task"):
        front(run, points=[[1, 1]])


def test_a_wrong_order_to_front_says_what_to_do(run, tmp_path) -> None:
    with pytest.raises(MtlkitError, match="left"):
        front(run, points=6, reference={"lefft": 0})
    with pytest.raises(SpecError, match="at least 6"):
        front(run, points=3)
    with pytest.raises(MtlkitError, match="mtlkit train"):
        front(tmp_path)


def test_preferences_cover_the_simplex() -> None:
    assert spread_preferences(2).shape == (11, 2)
    for tasks in (2, 3, 5):
        found = spread_preferences(tasks)
        assert np.allclose(found.sum(axis=1), 1)
        assert (found >= 0).all()
        corners = found[(found == 1).any(axis=1)]
        assert len(corners) == tasks


def test_an_exported_file_is_the_network_at_the_preference(run, capsys, tmp_path) -> None:
    loaded = mtlkit.load(run)
    loaded.network.set_preference({"left": 2, "right": 1})
    x = loaded.example(3)
    wanted = loaded(x)
    path = tmp_path / "net.safetensors"
    code, _ = call(capsys, "export", run, "--output", path, "--preference", "left=2,right=1")
    assert code == 0
    read = mtlkit.load(path)
    assert read.network.preference is None
    found = read(x)
    assert all(torch.allclose(found[task], wanted[task], atol=1e-5) for task in wanted)
    code, _ = call(capsys, "export", run, "--output", path, "--preference", "input")
    assert code == 0
    kept = mtlkit.load(path)
    kept.network.set_preference({"left": 2, "right": 1})
    found = kept(x)
    assert all(torch.allclose(found[task], wanted[task], atol=1e-5) for task in wanted)
    with pytest.raises(MtlkitError, match="left"):
        mtlkit.export(run, path, preference={"lefft": 1})
    code, output = call(capsys, "export", run, "--output", path, "--preference", "left:2")
    assert code == 2
    assert "seg=2,depth=1" in output.err


def test_a_run_without_preferences_has_no_front(tmp_path) -> None:
    mtlkit.train(data=DATA, epochs=1, output=tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match="--preference"):
        front(tmp_path / "run")
    with pytest.raises(UsageError, match="without preferences"):
        mtlkit.export(tmp_path / "run", tmp_path / "net.pt2", preference={"left": 1})
