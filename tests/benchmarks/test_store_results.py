"""What a comparison found is stored without paths of the machine that ran it."""

import json

import yaml

from benchmarks.draw_results import cosines_figure
from benchmarks.store_results import mean_cosines, store
from mtlkit.evaluation.histories import MonitorRow, write_rows
from mtlkit.evaluation.results import Comparison, Run, TaskRecord, run_folder


def comparison(folder):
    """Two seeds of the sum, with the cosines of two steps."""
    runs = [Run("sum", seed, metrics={"a": {"accuracy": 0.5 + seed / 10}}) for seed in (0, 1)]
    made = Comparison("two seeds", [TaskRecord("a", {"accuracy": True})], runs, reference="sum")
    made.save(folder)
    (folder / "compare.yaml").write_text("methods: [sum]\ndata_dir: of/this/machine\n")
    for seed in (0, 1):
        rows = [MonitorRow(step, update_cosines={"a": 0.1 * step, "b": 0.3}) for step in (1, 2)]
        write_rows(folder / "runs" / run_folder("sum", seed), [], rows)
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
