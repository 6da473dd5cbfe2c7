"""Fronts and ranks in the report: for two, three and more tasks, and without what has no result."""

import math

import numpy as np
import plotly.graph_objects as plotly
import pytest

from mtlkit.report.page import Charts, Listing, Note
from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.trade_offs import front_section, mean_metrics, rank_section

LABELS = ("single-task", "sum", "x", "y")


def drawn(tasks: int, seeds: int = 2, weightings: int = 6) -> Comparison:
    """Every second task is an error; x is better than single-task everywhere by 10 %, y worse."""
    random = np.random.default_rng(0)
    records = [
        TaskRecord(f"t{k}", {"mse": False} if k % 2 else {"accuracy": True}) for k in range(tasks)
    ]
    made = Comparison("drawn", records, baseline="single-task", reference="sum")
    gains = dict(zip(LABELS, (0.0, 0.0, 0.1, -0.1), strict=True))
    fronts = {f"front {k}": random.uniform(-0.05, 0.05, tasks) for k in range(weightings)}
    for seed in range(seeds):
        for label, gain in {**gains, **fronts}.items():
            shifts = np.broadcast_to(gain, tasks)
            metrics = {
                task.name: {task.main_metric: 0.5 * (1 + shift * (1 if task.higher_is_better else -1))}
                for task, shift in zip(records, shifts.tolist(), strict=True)
            }
            kind = "front" if label in fronts else ""
            made.runs.append(Run(label, seed, metrics=metrics, kind=kind))
    return made


def blocks(section, kind):
    return [block for block in section.kept if isinstance(block, kind)]


def figures(section):
    return [chart.figure for group in blocks(section, Charts) for chart in group.kept]


@pytest.mark.parametrize(("tasks", "charts"), [(2, 1), (3, 3)])
def test_up_to_three_tasks_every_pair_has_its_front_with_the_methods_beside_it(tasks, charts):
    found = figures(front_section(drawn(tasks)))
    assert len(found) == charts
    for figure in found:
        plotly.Figure(figure, skip_invalid=False)
        line, dots, *methods = figure["data"]
        assert (line["name"], len(dots["x"])) == ("front", 6)
        assert [trace["name"] for trace in methods] == list(LABELS)
        points = set(zip(dots["x"], dots["y"], strict=True))
        assert set(zip(line["x"], line["y"], strict=True)) < points
    x, y = found[0]["data"][0]["x"], found[0]["data"][0]["y"]
    assert x == sorted(x)
    assert y == sorted(y)  # more accuracy is paid by more error


def test_beyond_three_tasks_there_is_a_line_per_method_and_dominated_weightings_are_dotted():
    made = drawn(5, weightings=4)
    worst = [Run("worst", s, metrics=made.find("y", s).metrics, kind="front") for s in (0, 1)]
    made.runs += worst
    section = front_section(made)
    (figure,) = figures(section)
    plotly.Figure(figure, skip_invalid=False)
    dashes = {t["name"]: t["line"]["dash"] for t in figure["data"] if "meta" not in t}
    assert dashes.pop("worst") == "dot"
    solid = list(dashes.values()).count("solid")
    assert solid > 1
    assert f"{solid} of them are on the Pareto front" in blocks(section, Note)[0].text
    (x,) = [trace for trace in figure["data"] if trace["name"] == "x"]
    np.testing.assert_allclose(x["y"], 10)
    assert list(figure["layout"]["xaxis"]["ticktext"]) == [f"t{k}" for k in range(5)]


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_the_hypervolume_is_that_of_the_gains_over_single_task_networks(tasks):
    (listing,) = blocks(front_section(drawn(tasks)), Listing)
    volumes = {str(getattr(row[0], "text", row[0])): row[1].value for row in listing.rows}
    assert volumes["x"] == pytest.approx(0.1**tasks)
    assert volumes["y"] == volumes["sum"] == 0
    assert [row[2].text for row in listing.rows if volumes["x"] == row[1].value] == ["10.00"]


@pytest.mark.parametrize("how", ["failed", "absent", "nan"])
def test_a_method_without_a_result_on_every_seed_is_left_out_and_named(how):
    made = drawn(5)
    run = made.find("x", 1)
    if how == "absent":
        made.runs.remove(run)
    elif how == "failed":
        run.status, run.error = "failed", "NaN"
    else:
        run.metrics["t1"]["mse"] = math.nan
    assert np.isnan(mean_metrics(made, ["x"])).any()
    ranks = rank_section(made)
    assert "every seed: x." in blocks(ranks, Note)[0].text
    assert [trace.get("name") for trace in figures(ranks)[0]["data"]].count("x") == 0
    section = front_section(made)
    assert "every seed: x." in blocks(section, Note)[0].text
    (listing,) = blocks(section, Listing)
    assert [row[1].text for row in listing.rows if getattr(row[0], "text", "") == "x"] == ["–"]


def test_tied_methods_have_the_same_rank():
    made = drawn(5)
    for run in made.runs:
        run.metrics = made.find("sum", run.seed).metrics
    (figure,) = figures(rank_section(made))
    assert [trace["x"] for trace in figure["data"]] == [[2.5]] * 4
    assert "p = 1," in blocks(rank_section(made), Note)[0].text
