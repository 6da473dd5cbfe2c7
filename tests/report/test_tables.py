"""The table of a comparison, by hand."""

import csv
import io
import math
from dataclasses import replace

import pytest

from mtlkit.errors import SpecError
from mtlkit.experiments.terminal import render_table
from mtlkit.report.costs import cost_section
from mtlkit.report.published import published_section
from mtlkit.report.report import difference_charts, render_report
from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.tables import build_table, format_number, to_csv, to_latex, to_markdown
from tests.report.drawn_results import draw_comparison

TASKS = [TaskRecord("a", {"accuracy": True}), TaskRecord("b", {"mse": False, "mae": False})]


def run(label, seed, accuracy, mse, **more):
    return Run(label, seed, metrics={"a": {"accuracy": accuracy}, "b": {"mse": mse, "mae": 1.0}}, **more)


def small():
    runs = []
    for seed in range(3):
        runs += [
            run("single", seed, 0.8, 2.0),
            run("sum", seed, 0.7 + 0.01 * seed, 2.0, step_ratio=1.0),
            run("good_&_new", seed, 0.8 + 0.02 * seed, 1.0 + 0.1 * seed, step_ratio=1.5),
        ]
    return Comparison("x", TASKS, runs, baseline="single", reference="sum")


def test_step_times_are_not_shown_where_only_the_reference_has_one():
    made = small()
    assert any(column.kind == "time" for column in build_table(made).columns)
    made.runs = [replace(r, step_ratio=1.0 if r.label == "sum" else None) for r in made.runs]
    table = build_table(made)
    assert not any(column.kind == "time" for column in table.columns)
    titles = [
        chart.title for block in cost_section(made, table).blocks for chart in getattr(block, "kept", [])
    ]
    assert "Time of a step" not in titles


def test_improvements_are_relative_to_the_baseline_of_the_same_seed():
    table = build_table(small())
    rows = {row.label: row for row in table.rows}
    # seed 1: accuracy 0.82 over 0.8 is +2.5 %, mse 1.1 over 2 is +45 %
    cell = rows["good_&_new"].cells["delta/mean"]
    assert cell.spread.median == pytest.approx((2.5 + 45) / 2)
    assert rows["good_&_new"].cells["delta/minimum"].spread.median == pytest.approx(2.5)
    assert rows["good_&_new"].cells["delta/maximum"].spread.median == pytest.approx(45)
    assert rows["single"].cells["delta/mean"].spread.median == 0
    assert rows["single"].cells["delta/mean"].spread.std == 0
    assert rows["sum"].cells["delta/mean"].spread.median == pytest.approx(100 * (0.71 / 0.8 - 1) / 2)


def test_daggers_and_best_are_those_against_reference_and_baseline():
    rows = {row.label: row for row in build_table(small()).rows}
    assert rows["good_&_new"].cells["a/accuracy"].dagger
    assert rows["good_&_new"].cells["b/mse"].dagger
    assert rows["good_&_new"].cells["delta/mean"].dagger
    assert not any(cell.dagger for cell in rows["sum"].cells.values())
    assert not any(cell.dagger or cell.best for cell in rows["single"].cells.values())
    assert rows["good_&_new"].cells["b/mse"].best
    assert not rows["sum"].cells["b/mse"].best
    assert [row.role for row in build_table(small()).rows] == ["baseline", "reference", ""]


def test_the_order_of_runs_does_not_matter_for_the_pairs():
    made = small()
    made.runs = [made.runs[i] for i in (8, 0, 4, 2, 7, 1, 3, 6, 5)]
    made.config["order"] = ["single", "sum", "good_&_new"]
    expected = small()
    assert to_csv(build_table(made)) == to_csv(build_table(expected))


def test_a_seed_without_a_baseline_has_no_improvement():
    made = small()
    made.runs = [r for r in made.runs if (r.label, r.seed) != ("single", 1)]
    rows = {row.label: row for row in build_table(made).rows}
    assert rows["sum"].cells["delta/mean"].spread.count == 2


def test_several_compared_metrics_are_averaged_and_shown_per_task():
    made = small()
    made.tasks = [TASKS[0], TaskRecord("b", {"mse": False, "mae": False}, ("mse", "mae"))]
    rows = {row.label: row for row in build_table(made).rows}
    # mse +45 %, mae 0 %
    assert rows["good_&_new"].cells["delta/task/b"].spread.median == pytest.approx(22.5)
    assert "b/mae" not in rows["sum"].cells
    assert "b/mae" in {row.label: row for row in build_table(made, all_metrics=True).rows}["sum"].cells


def test_failed_runs_are_counted_and_left_out():
    made = small()
    made.runs[2].status = "failed"
    rows = {row.label: row for row in build_table(made).rows}
    assert (rows["good_&_new"].done, rows["good_&_new"].failed) == (2, 1)
    assert rows["good_&_new"].cells["a/accuracy"].spread.count == 2


def test_one_seed_has_no_deviation_and_no_dagger():
    made = small()
    made.runs = made.runs[:3]
    text = to_markdown(build_table(made))
    assert "±" not in text.split("\n\n")[0]
    assert "†" not in text.split("\n\n")[0]


def test_without_a_baseline_there_are_no_improvements():
    made = small()
    made.baseline = None
    assert not any(column.key.startswith("delta") for column in build_table(made).columns)
    empty = Comparison("x", TASKS)
    assert build_table(empty).rows == []
    assert to_markdown(build_table(empty))


def test_markdown_has_as_many_cells_in_every_row_and_escapes_bars():
    made = draw_comparison(methods=("single-task", "sum", "a|b"), seeds=2, epochs=1, monitor=1)
    lines = [line for line in to_markdown(build_table(made)).splitlines() if line.startswith("|")]
    bars = {line.replace("\\|", "").count("|") for line in lines}
    assert len(lines) == 5
    assert len(bars) == 1
    assert r"a\|b" in lines[-1]


def test_latex_escapes_and_marks():
    text = to_latex(build_table(small()))
    assert r"good\_\&\_new" in text
    assert r"$^\dagger$" in text
    assert r"\textbf{" in text
    body = text[text.index(r"\midrule") :].splitlines()
    rows = [line for line in body if line.endswith(r"\\")]
    columns = text[text.index("{l") + 2 : text.index("}\n\\toprule")]
    assert len(rows) == 3
    assert {line.replace(r"\&", "").count("&") for line in rows} == {len(columns)}
    assert not any(ord(character) > 127 for character in "\n".join(body))


def test_csv_reads_back_at_full_precision():
    rows = list(csv.DictReader(io.StringIO(to_csv(build_table(small())))))
    assert [row["method"] for row in rows] == ["single", "sum", "good_&_new"]
    assert float(rows[1]["a/accuracy median"]) == 0.71
    assert rows[0]["a/accuracy p"] == ""
    assert 0 < float(rows[2]["a/accuracy p"]) < 0.05


@pytest.mark.parametrize(
    ("value", "decimals", "expected"),
    [
        (0.12345, 4, "0.1235"), (-0.001, 2, "0.00"), (math.nan, 2, "–"), (math.inf, 2, "∞"),
        (1234567.0, 1, "1.23e+06"), (-12.345, 1, "-12.3"), (8.1234e-6, 9, "8.12e-06"), (0.0, 9, "0"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_and_what_is_no_number_has_a_sign(value, decimals, expected):
    assert format_number(value, decimals) == expected


@pytest.mark.parametrize(
    ("mse", "text"),
    [
        (0.5, "0.5000"), (0.0123456, "0.01235"), (0.00123456, "0.001235"), (8.1e-6, "8.10e-06"),
        (0.0, "0.0000"),
    ],
)  # fmt: skip
def test_small_metrics_have_four_digits_too(mse, text):
    made = Comparison(
        "x", [TaskRecord("b", {"mse": False})], [Run("sum", 0, metrics={"b": {"mse": mse}})]
    )
    assert f"| sum | {text} | 1 |" in to_markdown(build_table(made))


@pytest.mark.parametrize("baseline", ["single", None])
def test_a_task_may_have_a_name_of_the_tables_own(baseline):
    names = ("delta", "over", "overlap")
    runs = [
        Run(label, seed, metrics={name: {"accuracy": level + 0.01 * seed} for name in names})
        for label, level in {"single": 0.5, "sum": 0.6, "x": 0.7}.items()
        for seed in range(3)
    ]
    tasks = [TaskRecord(name, {"accuracy": True}) for name in names]
    table = build_table(Comparison("c", tasks, runs, baseline=baseline, reference="sum"))
    row = next(row for row in table.rows if row.label == "x")
    assert all(row.cells[f"{name}/accuracy"].claim is not None for name in names)
    assert table.columns[0].decimals == 4
    assert "| method | delta accuracy ↑ | over accuracy ↑ | overlap accuracy ↑ |" in to_markdown(table)
    heads = [str(column.header) for column in render_table(table).columns]
    assert heads[1:4] == [f"{name} accuracy ↑" for name in names]
    assert [chart.title for chart in difference_charts(table, tasks=True).kept] == list(names)


def test_without_a_baseline_a_common_metric_has_statistics_over_tasks():
    tasks = [TaskRecord(name, {"f1": True}) for name in "abc"]
    runs = [
        Run("sum", 0, metrics={"a": {"f1": 0.2}, "b": {"f1": 0.5}, "c": {"f1": 0.8}}),
        Run("mgda", 0, metrics={"a": {"f1": 0.1}, "b": {"f1": 0.9}, "c": {"f1": 0.8}}),
    ]
    table = build_table(Comparison("x", tasks, runs, reference="sum"))
    first, second = table.rows
    assert first.cells["over/minimum"].spread.median == 0.2
    assert first.cells["over/median"].spread.median == 0.5
    assert second.cells["over/mean"].spread.median == pytest.approx(0.6)
    assert second.cells["over/mean"].best
    mixed = [*tasks[:2], TaskRecord("c", {"mse": False})]
    columns = build_table(Comparison("x", mixed, runs)).columns
    assert not any(column.key.startswith("over/") for column in columns)


def test_delta_m_is_over_metrics_and_may_be_relative_to_a_fixed_row():
    made = small()
    made.tasks = [TASKS[0], TaskRecord("b", {"mse": False, "mae": False}, ("mse", "mae"))]
    rows = {row.label: row for row in build_table(made).rows}
    # seed 1: accuracy 0.82 over 0.8, mse 1.1 over 2, mae 1 over 1
    expected = -(2.5 + 45 + 0) / 3
    assert rows["good_&_new"].cells["delta_m"].spread.median == pytest.approx(expected)
    made.config["single_task_row"] = {"a/accuracy": 0.41, "b/mse": 1.1}
    rows = {row.label: row for row in build_table(made).rows}
    assert rows["good_&_new"].cells["delta_m"].spread.median == pytest.approx(-(100 + 0) / 2)
    made.config["primary"] = "delta_m"
    table = build_table(made)
    rows = {row.label: row for row in table.rows}
    assert rows["good_&_new"].cells["primary"].spread.median == pytest.approx(50)
    assert [column.title for column in table.columns if column.key == "primary"] == ["−Δm"]
    made.config["single_task_row"] = {"a/acuracy": 0.41}
    with pytest.raises(SpecError, match="a/acuracy"):
        build_table(made)


def test_published_rows_stand_beside_ours_and_a_known_spread_decides():
    made = small()
    rows = [
        {"method": "LS", "spec": "sum", "delta_m": 5.0, "spread": 2.0, "source": "a paper"},
        {"method": "New", "spec": "good_&_new", "delta_m": 0.0, "spread": 0.1, "source": "a paper"},
        {"method": "MGDA", "spec": "mgda", "delta_m": 1.4, "source": "a paper"},
    ]
    made.config["published"] = {"rows": rows}
    section = published_section(made, build_table(made))
    (listing, _) = section.blocks
    found = {row[0]: (row[1], row[5]) for row in listing.rows}
    assert found == {"LS": ("sum", "yes"), "New": ("good_&_new", "no"), "MGDA": ("", "not run")}
    assert "a paper" in render_report(made)
    assert "Published rows" not in render_report(small())
