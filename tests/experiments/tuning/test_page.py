"""The page of a search: its history, and what every setting was worth."""

import json
import re

import plotly.graph_objects as plotly
import pytest

from mtlkit.config.search import Choice, LogUniform
from mtlkit.experiments.tuning.ledger import Trial
from mtlkit.experiments.tuning.page import write_page
from mtlkit.experiments.tuning.spaces import make_space
from mtlkit.experiments.tuning.winners import Winner, Winners

TASKS = ("a", "b")
TRAIN = {"lr": 1e-3, "method_lr": None, "weight_decay": 0.0}
GIVEN = {"lr": LogUniform(1e-4, 1e-2), "optimizer": Choice("sgd", "adam")}
SPACES = {
    label: make_space(method, GIVEN, TRAIN, TASKS, lambda: 40)
    for label, method in {"sum": "sum", "tuned": "constant", "cagrad": "cagrad"}.items()
}


def trial(label, index, value, state="done"):
    point = {"lr": 1e-3 * (index + 1), "optimizer": ("adam", "sgd", "adam", "adam")[index]}
    own = {name: 0.1 + 0.2 * index for name in SPACES[label].axes if name not in point}
    return Trial(label, index, point | own, index, state, value)


@pytest.fixture(scope="module")
def charts(tmp_path_factory):
    """The page's charts by title."""
    trials = {
        label: [trial(label, 0, 1.0), trial(label, 1, 3.0), trial(label, 2, 9.0, "pruned"),
                trial(label, 3, -200.0, "failed")]
        for label in SPACES
    }  # fmt: skip
    cost = {x: {"trials": 4, "failed": 1, "pruned": 1, "seconds": 8.0, "steps": 90} for x in SPACES}
    best = [Winner(label, label, {"lr": 2e-3}, 3.0, 1) for label in SPACES]
    winners = Winners({"data": "multidigits"}, 7, 4, "random", best, cost)
    page = write_page(tmp_path_factory.mktemp("page"), "Search", winners, trials, SPACES).read_text()
    page = re.sub(r'<script type="application/gzip".*?</script>\n', "", page)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return dict(zip(titles, map(json.loads, found), strict=True))


def test_there_is_a_history_and_a_chart_per_setting_that_plotly_takes(charts):
    assert list(charts) == [
        "Best so far", "lr", "optimizer", "constant.weights.a", "constant.weights.b", "cagrad.c"
    ]  # fmt: skip
    for figure in charts.values():
        plotly.Figure(figure, skip_invalid=False)
    assert [len(charts[name]["data"]) for name in ("lr", "cagrad.c")] == [3, 1]


def test_the_best_so_far_counts_no_trial_that_was_pruned_or_failed(charts):
    assert [trace["y"] for trace in charts["Best so far"]["data"]] == [[1, 3, 3, 3]] * 3


def test_a_pruned_trial_is_a_ring_and_a_failed_one_is_not_drawn(charts):
    trace = charts["lr"]["data"][0]
    assert trace["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    assert trace["text"] == ["1", "2", "3 (pruned)"]
    assert trace["y"] == [1, 3, 9]


def test_axes_show_choices_in_their_order_and_nothing_that_cannot_be(charts):
    axes = {name: figure["layout"]["xaxis"] for name, figure in charts.items()}
    assert axes["lr"]["type"] == "log"
    assert axes["optimizer"]["categoryarray"] == ["sgd", "adam"]
    search = SPACES["cagrad"].axes["cagrad.c"]
    assert axes["cagrad.c"]["minallowed"] == search.low
    assert axes["cagrad.c"]["maxallowed"] == search.high
    assert axes["constant.weights.a"]["type"] == "log"
    first = charts["constant.weights.a"]["data"][0]["x"]
    assert first == pytest.approx([1, 1, 1])  # both numbers are equal, so the weights are
