"""What a comparison found is stored without paths of the machine that ran it."""

import json

import pytest
import yaml

from benchmarks.draw_results import cosines_figure
from benchmarks.store_results import add, mean_cosines, store
from mtlkit.report.histories import MonitorRow, write_rows
from mtlkit.report.results import Comparison, Run, TaskRecord, run_folder


def comparison(folder, label="sum", lr=0.1):
    """Two seeds of one method, with the cosines of two steps."""
    runs = [Run(label, seed, metrics={"a": {"accuracy": 0.5 + seed / 10}}) for seed in (0, 1)]
    config = {"lr": lr, "methods": {label: label}, "order": [label], "seeds": [0, 1]}
    made = Comparison("two seeds", [TaskRecord("a", {"accuracy": True})], runs, config, reference="sum")
    made.save(folder)
    (folder / "compare.yaml").write_text("methods: [sum]\ndata_dir: of/this/machine\n")
    for seed in (0, 1):
        rows = [MonitorRow(step, update_cosines={"a": 0.1 * step, "b": 0.3}) for step in (1, 2)]
        write_rows(folder / "runs" / run_folder(label, seed), [], rows)
    return made


def test_settings_results_and_cosines_are_stored_without_paths(tmp_path):
    run, folder = tmp_path / "run", tmp_path / "stored"
    comparison(run)
    store(run, folder)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == {"methods": ["sum"]}
    assert "command" not in json.loads((folder / "comparison.json").read_text())["versions"]
    stored = Comparison.load(folder)
    assert [run.metric("a", "accuracy") for run in stored.runs] == [0.5, 0.6]
    cosines = json.loads((folder / "cosines.json").read_text())
    assert cosines == {"sum": [[[1, 0.2], [2, 0.25]]] * 2}


def test_the_figure_of_cosines_has_a_line_and_a_band_per_method(tmp_path):
    comparison(tmp_path)
    figure = cosines_figure(mean_cosines(tmp_path), {"one panel": ["sum"]})
    (axis,) = figure.axes
    (line,) = axis.lines
    assert line.get_ydata().tolist() == [0.2, 0.25]
    assert len(axis.collections) == 1


def test_more_methods_are_added_to_what_is_stored(tmp_path):
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "stored"
    comparison(first)
    store(first, folder)
    comparison(second, "pcgrad")
    add(first, folder)  # changes nothing
    add(second, folder)
    stored = Comparison.load(folder)
    assert [(run.label, run.seed) for run in stored.runs] == [
        ("sum", 0), ("sum", 1), ("pcgrad", 0), ("pcgrad", 1)
    ]  # fmt: skip
    assert stored.config["methods"] == {"sum": "sum", "pcgrad": "pcgrad"}
    assert stored.labels == ["sum", "pcgrad"]


def test_runs_that_contradict_what_is_stored_are_refused(tmp_path):
    first, second, third, folder = (tmp_path / name for name in ("first", "second", "third", "stored"))
    comparison(first)
    store(first, folder)
    comparison(second, "pcgrad", lr=0.2)
    with pytest.raises(SystemExit, match=r"differs from .* in lr$"):
        add(second, folder)
    made = comparison(third)
    made.runs[0].metrics["a"]["accuracy"] = 0.7
    made.save(third)
    with pytest.raises(SystemExit, match="sum, seed 0, is stored with other metrics"):
        add(third, folder)
