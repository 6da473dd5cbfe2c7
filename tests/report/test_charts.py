"""Charts: valid to Plotly, within what is possible, small and escaped."""

import itertools
import math

import numpy as np
import plotly.graph_objects as plotly
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.report import charts, page
from mtlkit.report.charts import Line, Point, Row

X = np.arange(6.0)
EVIL = '<a href="https://x.example">&<b>'


def every_chart():
    lines = [Line(0, EVIL, X, X + 1, X, X + 2), Line(1, "b", X, X * 0.1 + 0.5)]
    rows = [Row(0, EVIL, 0.6, 0.5, 0.7, [0.5, 0.7, math.nan]), Row(1, "b", 0.9)]
    points = [Point(0, EVIL, 0.1, 0.9), Point(None, "w", 0.5, 0.5), Point(1, "b", 0.3, math.nan)]
    table = np.array([[1.0, -2.0], [math.nan, 0.0]])
    return {
        "lines": charts.line_chart(lines, "t", EVIL, "y", bounds=(0.0, 1.0)),
        "logarithms": charts.line_chart(lines, "t", "x", "y", log_y=True),
        "rows": charts.row_chart(rows, "t", EVIL, marker=0.6, bounds=(0.0, 1.0)),
        "points": charts.point_chart(points, "t", EVIL, "y", front=points[:2]),
        "heat": charts.heat_chart(table, [EVIL, "b"], "t"),
        "layers": charts.layer_chart({EVIL: table[0], "b": table[1]}, [EVIL, "a and b"], "t"),
        "texts": charts.heat_chart(table, [EVIL, "b"], "t", texts=[["", "x"], ["y", ""]]),
    }


@pytest.mark.parametrize("name", every_chart())
def test_plotly_takes_every_chart_and_no_text_is_markup(name):
    chart = every_chart()[name]
    plotly.Figure(chart.figure, skip_invalid=False)
    assert "<a" not in str(chart.figure)
    assert "<b" not in str(chart.figure)
    assert chart.description


@pytest.mark.skipif(
    not page._PLOTLY.is_file(), reason="make could not fetch the part of plotly.js from npm"
)
@pytest.mark.parametrize("name", every_chart())
def test_the_part_of_plotly_that_a_page_embeds_has_every_kind_of_trace(name):
    for trace in every_chart()[name].figure["data"]:
        assert f'moduleType:"trace",name:"{trace["type"]}"' in page._PLOTLY.read_text()


def test_nothing_to_see_is_no_chart():
    nan = np.full(6, math.nan)
    assert charts.line_chart([], "t", "x", "y") is None
    assert charts.line_chart([Line(0, "a", X, nan)], "t", "x", "y") is None
    assert charts.line_chart([Line(0, "a", X, -X)], "t", "x", "y", log_y=True) is None
    assert charts.row_chart([Row(0, "a", math.nan)], "t", "x") is None
    assert charts.point_chart([Point(0, "a", math.nan, 1.0)], "t", "x", "y") is None


def test_bands_and_axes_end_where_values_are_impossible():
    line = Line(0, "a", X, np.full(6, 0.95), np.full(6, 0.8), np.full(6, 1.1))
    figure = charts.line_chart([line], "t", "x", "y", bounds=(0.0, 1.0)).figure
    low, high, curve = figure["data"]
    assert high["y"].max() == 1.0
    assert low["y"].min() == 0.8
    assert curve["y"].tolist() == [0.95] * 6
    assert (figure["layout"]["yaxis"]["minallowed"], figure["layout"]["yaxis"]["maxallowed"]) == (
        0.0,
        1.0,
    )


def test_a_band_without_bounds_is_not_clipped(monkeypatch):
    """NumPy before 2.1 has no clip without any bound."""
    monkeypatch.setattr(charts.np, "clip", None)
    figure = charts.line_chart([Line(0, "a", X, X, X - 1, X + 1)], "t", "x", "y").figure
    assert figure["data"][0]["y"].tolist() == (X - 1).tolist()


def test_long_names_that_start_alike_stay_apart():
    start = "normalize(burn_in=20)+rotate+"
    labels = [start + "imtl_g", start + "scale<"]
    names, short = (
        [start + "imtl_g", start + "scale&lt;"],
        ["normalize(bur…otate+imtl_g", "normalize(bur…otate+scale&lt;"],
    )
    chart = charts.row_chart([Row(k, label, 1.0, 0.5, 1.5) for k, label in enumerate(labels)], "t", "x")
    axis = chart.figure["layout"]["yaxis"]
    assert [trace["y"] for trace in chart.figure["data"]] == [[name] for name in names]
    assert (axis["tickvals"], axis["ticktext"]) == (names, short)
    figure = charts.heat_chart(np.eye(2), labels, "t").figure
    assert figure["data"][0]["x"] == figure["data"][0]["y"] == names
    assert figure["layout"]["xaxis"]["ticktext"] == figure["layout"]["yaxis"]["ticktext"] == short


def test_a_row_shows_its_mean_its_interval_and_a_dot_per_seed():
    chart = charts.row_chart([Row(0, "a", 2.0, 1.0, 4.0, [1.5, 2.0, 2.5]), Row(1, "b", 3.0)], "t", "x")
    dots, mean, alone = chart.figure["data"]
    assert dots["x"] == [1.5, 2.0, 2.5]
    assert (mean["x"], mean["error_x"]["array"], mean["error_x"]["arrayminus"]) == ([2.0], [2.0], [1.0])
    assert alone["error_x"] == {"visible": False}


def test_of_many_pairs_those_with_the_lowest_cosines_are_drawn_by_layer():
    cosines = {f"layer {k}": np.linspace(1, -1, 60) for k in range(3)}
    (data,) = charts.layer_chart(cosines, [f"pair {k}" for k in range(60)], "t").figure["data"]
    assert data["y"] == list(cosines)
    assert data["x"][-1] == "pair 59"
    assert len(data["x"]) < 30
    assert np.asarray(data["z"]).max() < 0
    assert charts.layer_chart({"a": np.full(60, math.nan)}, list(map(str, range(60))), "t") is None
    assert charts.layer_chart({}, [], "t") is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_no_label_of_a_point_overlaps_another(places):
    points = [Point(k, f"method {k}", x, y) for k, (x, y) in enumerate(places)]
    chart = charts.point_chart(points, "t", "x", "y")
    assert len(chart.figure["data"]) == len(points)
    boxes = charts._label_boxes(points)
    known = [box for _, box in filter(None, boxes)]
    assert not any(charts._overlap(a, b) for a, b in itertools.combinations(known, 2))
    assert len(points) > 1 or known


def test_bounds_never_hide_data():
    percent = charts.row_chart([Row(0, "a", 94.0)], "t", "accuracy", bounds=(0.0, 1.0))
    axis = percent.figure["layout"]["xaxis"]
    assert "maxallowed" not in axis
    assert axis["minallowed"] == 0.0
    line = Line(0, "a", X, X - 2)
    assert (
        "minallowed"
        not in charts.line_chart([line], "t", "x", "y", bounds=(0.0, None)).figure["layout"]["yaxis"]
    )


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("accuracy", (0.0, 1.0)), ("f1", (0.0, 1.0)), ("auc", (0.0, 1.0)), ("miou", (0.0, 1.0)),
        ("pixel_accuracy", (0.0, 1.0)), ("within_11.25", (0.0, 1.0)), ("mse", (0.0, None)),
        ("mae", (0.0, None)), ("abs_error", (0.0, None)), ("mean_angle", (0.0, None)), ("r2", (None, 1.0)),
        ("utility", (None, None)),
    ],
)  # fmt: skip
def test_metrics_have_the_bounds_of_their_kind(name, bounds):
    assert charts.metric_bounds(name) == bounds


def test_long_curves_are_thinned_and_gaps_stay():
    x = np.arange(10_000.0)
    y = np.sin(x / 1000)
    y[4000:5000] = math.nan
    (trace,) = charts.line_chart([Line(0, "a", x, y)], "t", "x", "y", points=50).figure["data"]
    assert len(trace["x"]) == 50
    assert np.isnan(trace["y"]).sum() == 5
    short = charts.line_chart([Line(0, "a", X, X)], "t", "x", "y", points=50).figure["data"][0]
    assert short["x"].tolist() == X.tolist()


def test_a_single_point_is_a_dot():
    (trace,) = charts.line_chart([Line(0, "a", X[:1], X[:1])], "t", "x", "y").figure["data"]
    assert trace["mode"] == "markers"
