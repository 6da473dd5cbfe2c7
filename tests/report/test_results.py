"""Results on disk."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.report.histories import read_history
from mtlkit.report.results import (
    Comparison,
    ResultsError,
    Run,
    TaskRecord,
    append_result,
    read_trainer_run,
    run_folder,
)
from mtlkit.report.tables import build_table, to_csv
from tests.report.drawn_results import draw_comparison


def test_a_comparison_comes_back_from_disk_as_it_was(tmp_path):
    made = draw_comparison(seeds=2, epochs=2, monitor=3)
    made.save(tmp_path)
    again = Comparison.load(tmp_path)
    assert again == made
    assert to_csv(build_table(again)) == to_csv(build_table(made))


def test_nan_survives_the_disk_as_nan(tmp_path):
    made = Comparison(
        "x", [TaskRecord("a", {"mse": False})], [Run("m", 0, metrics={"a": {"mse": math.nan}})]
    )
    made.save(tmp_path)
    assert "NaN" not in (tmp_path / "results.jsonl").read_text()
    assert math.isnan(Comparison.load(tmp_path).runs[0].metric("a", "mse"))


def test_a_torn_last_line_is_left_out_and_does_not_swallow_the_next(tmp_path):
    made = draw_comparison(methods=("sum", "pcgrad"), seeds=1, epochs=1, monitor=1)
    made.save(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [run.label for run in Comparison.load(tmp_path).runs] == ["sum"]
    append_result(tmp_path, made.runs[1])
    assert [run.label for run in Comparison.load(tmp_path).runs] == ["sum", "pcgrad"]


def test_the_later_of_two_lines_for_one_run_counts(tmp_path):
    Comparison("x", [TaskRecord("a", {"mse": False})]).save(tmp_path)
    append_result(tmp_path, Run("m", 0, "failed", error="killed"))
    append_result(tmp_path, Run("m", 0, "done", metrics={"a": {"mse": 1.0}}))
    (run,) = Comparison.load(tmp_path).runs
    assert run.status == "done"


@given(st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=120))
def test_labels_that_differ_never_share_a_folder(first, second):
    names = {run_folder(first, 0), run_folder(second, 0)}
    assert len(names) == (1 if first == second else 2)
    for name in names:
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) < 120


def test_a_label_with_slashes_and_dots_stays_inside_the_folder(tmp_path):
    made = Comparison("x", [TaskRecord("a", {"mse": False})], [Run("../../evil", 0)])
    made.save(tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert Comparison.load(tmp_path / "in").runs[0].label == "../../evil"


def test_a_folder_without_results_is_a_clear_error(tmp_path):
    with pytest.raises(ResultsError, match=r"no comparison.*mtlkit compare"):
        Comparison.load(tmp_path)
    (tmp_path / "comparison.json").write_text('{"title": ')
    with pytest.raises(ResultsError, match=r"comparison\.json"):
        Comparison.load(tmp_path)
    with pytest.raises(ResultsError, match="neither a comparison"):
        read_trainer_run(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("config", "order"), 5),
        (("config", "primary"), 5),
        (("config", "improvement_over"), [1]),
        (("config", "single_task_row"), ["a/mse"]),
        (("config", "published"), {"rows": [{"method": "x", "delta_m": "low"}]}),
        (("reference",), []),
        (("tasks",), {"a": 3}),
        (("tuning",), {"sum": {"trials": "many"}}),
    ],
)
def test_a_header_with_a_wrong_type_names_the_place_and_the_value(place, wrong, tmp_path):
    draw_comparison(seeds=1, epochs=1, monitor=1).save(tmp_path)
    path = tmp_path / "comparison.json"
    header = json.loads(path.read_text())
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = wrong
    path.write_text(json.dumps(header))
    with pytest.raises(
        ResultsError, match=rf"cannot read .*comparison\.json: {'.'.join(place)}.*, not "
    ):
        Comparison.load(tmp_path)


def test_an_entry_that_a_header_lacks_is_named_alone(tmp_path):
    (tmp_path / "comparison.json").write_text('{"tasks": []}')
    with pytest.raises(ResultsError, match=r"title: field required$"):
        Comparison.load(tmp_path)


@pytest.mark.parametrize("tasks", ['{"a": 3}', '{"a": {"metrics": ["mse"]}}', '{"a": {"metrics": 1}}'])
def test_a_log_whose_tasks_cannot_be_read_is_a_clear_error(tasks, tmp_path):
    (tmp_path / "log.jsonl").write_text(f'{{"kind": "run", "step": 0, "tasks": {tasks}}}\n')
    with pytest.raises(ResultsError, match=r"cannot read .*log\.jsonl: tasks"):
        read_trainer_run(tmp_path)


def test_a_line_that_is_nested_too_deeply_is_skipped(tmp_path):
    made = draw_comparison(methods=("sum", "pcgrad"), seeds=1, epochs=1, monitor=1)
    made.save(tmp_path)
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write("[" * 100_000 + "\n")
    assert [run.label for run in Comparison.load(tmp_path).runs] == ["sum", "pcgrad"]


def test_methods_keep_the_order_that_the_configuration_names():
    made = draw_comparison(methods=("b", "a", "c"), seeds=1, epochs=1, monitor=1)
    assert made.labels == ["b", "a", "c"]
    made.config["order"] = ["c", "nothing", "a"]
    assert made.labels == ["c", "a", "b"]


def test_a_trainers_log_is_read_as_history(tmp_path):
    lines = [
        {"kind": "run", "step": 0, "tasks": {"a": {"kind": "regression", "metrics": {"mse": False}}},
         "method": "pcgrad"},
        {"kind": "train", "step": 10, "epoch": 0, "losses": {"a": 1.5}, "batches": 10, "rates": {}},
        {"kind": "monitor", "step": 10, "epoch": 0, "tasks": ["a"], "samples": 1, "conflict": 0.25,
         "cosines": [[1.0]], "norms": {"a": 2.0}, "weights": {"a": 1.0}, "update_cosines": {"a": 0.5}},
        {"kind": "validation", "step": 10, "epoch": 1, "score": 1, "best": True,
         "tasks": {"a": {"loss": 1.2, "mse": 1.1}}},
        {"kind": "validation", "step": 20, "epoch": 2, "score": 0, "best": False,
         "tasks": {"a": {"loss": 1.4, "mse": None}}},
        {"kind": "note", "step": 20, "message": "x"},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "log.jsonl").write_text(text + '{"kind": "train", "st')
    history, monitor = read_history(tmp_path)
    assert [(row.split, row.step) for row in history] == [("train", 10), ("val", 10), ("val", 20)]
    assert history[1].losses == {"a": 1.2}
    assert math.isnan(history[2].metrics["a"]["mse"])
    assert (monitor[0].conflict, monitor[0].mean_cosine, monitor[0].norms) == (0.25, 0.5, {"a": 2.0})
    single = read_trainer_run(tmp_path)
    assert single.runs[0].label == "pcgrad"
    assert single.runs[0].metric("a", "mse") == 1.1


def test_a_run_that_was_tested_shows_the_test(tmp_path):
    lines = [
        {"kind": "run", "step": 0, "tasks": {"a": {"metrics": {"mse": False}}}, "method": "pcgrad"},
        {"kind": "validation", "step": 10, "epoch": 1, "best": True, "tasks": {"a": {"mse": 1.1}}},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trainer_run(tmp_path).split == "validation"
    (tmp_path / "test.json").write_text(json.dumps({"a": {"mse": 1.3}}))
    tested = read_trainer_run(tmp_path)
    assert (tested.split, tested.runs[0].metric("a", "mse")) == ("test", 1.3)


def training(folder, label, seed, task=None, **result):
    folder.mkdir(parents=True, exist_ok=True)
    job = {"label": label, "seed": seed, "task": task, "train": {"method": f"normalize+{label}"}}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "result.json").write_text(json.dumps({"error": "", "seconds": 2.0, "steps": 30, **result}))


def test_lost_lines_are_recovered_from_the_results_of_the_trainings(tmp_path):
    tasks = [TaskRecord("a", {"mse": False}), TaskRecord("b", {"mse": False})]
    Comparison("x", tasks).save(tmp_path)
    append_result(tmp_path, Run("sum", 0, metrics={"a": {"mse": 5.0}}))
    runs = tmp_path / "runs"
    training(runs / "sum-seed0", "sum", 0, metrics={"a": {"mse": 9.0}})  # its line is there, and counts
    training(runs / "sum-seed1", "sum", 1, metrics={"a": {"mse": 1.0}, "b": {"mse": 2.0}})
    training(runs / "mgda-seed1", "mgda", 1, error="NaN")
    training(runs / "single-task-seed0/task0", "single-task", 0, "a", metrics={"a": {"mse": 3.0}})
    training(runs / "single-task-seed0/task1", "single-task", 0, "b", metrics={"b": {"mse": 4.0}})
    training(runs / "single-task-seed1/task0", "single-task", 1, "a", metrics={"a": {"mse": 3.0}})
    (tmp_path / "timing.json").write_text('{"ratios": {"sum": 1.0}}')
    made = Comparison.load(tmp_path)
    assert {(run.label, run.seed) for run in made.recovered} == {("sum", 1), ("single-task", 0)}
    assert made.find("sum", 0).metric("a", "mse") == 5.0
    found = made.find("sum", 1)
    assert (found.step_ratio, found.seconds, found.steps, found.method) == (
        1.0,
        2.0,
        30,
        "normalize+sum",
    )
    both = made.find("single-task", 0)
    assert both.metrics == {"a": {"mse": 3.0}, "b": {"mse": 4.0}}
    assert (both.seconds, both.steps) == (4.0, 60)
    for run in made.recovered:
        append_result(tmp_path, run)
    assert Comparison.load(tmp_path).recovered == []


def test_a_folder_of_a_newer_version_is_refused_politely(tmp_path):
    Comparison("x", [TaskRecord("a", {"mse": False})], versions={"mtlkit": "9.1"}).save(tmp_path)
    header = json.loads((tmp_path / "comparison.json").read_text())
    (tmp_path / "comparison.json").write_text(json.dumps({**header, "format": 2, "tasks": "unknown"}))
    with pytest.raises(ResultsError, match=r"mtlkit 9\.1, in format 2; .* up to 1\. Update mtlkit"):
        Comparison.load(tmp_path)


def test_weightings_of_the_front_are_no_rows_of_the_table(tmp_path):
    made = draw_comparison(methods=("sum", "pcgrad"), seeds=1, epochs=1, monitor=1)
    made.runs.append(Run("sum 0.2 0.8", 0, metrics=made.runs[0].metrics, kind="front"))
    made.tuning = {"sum": {"trials": 4, "seconds": 10.0, "steps": 400}}
    made.save(tmp_path)
    again = Comparison.load(tmp_path)
    assert again == made
    assert again.labels == ["sum", "pcgrad"]
    assert again.front_labels == ["sum 0.2 0.8"]
