"""Charts: valid to Plotly, within what is possible, small and escaped."""

import math

import numpy as np
import plotly.graph_objects as plotly
import pytest

from mtlkit.report import charts, row_charts
from mtlkit.report.charts import Line, Point
from mtlkit.report.row_charts import Interval, Sample

X = np.arange(6.0)
EVIL = '<a href="https://x.example">&<b>'


def every_chart():
    lines = [Line(0, EVIL, X, X + 1, X, X + 2), Line(1, "b", X, X * 0.1 + 0.5)]
    samples = [Sample(0, EVIL, [0.5, 0.7, math.nan]), Sample(1, "b", [0.9])]
    points = [Point(0, EVIL, 0.1, 0.9), Point(None, "w", 0.5, 0.5), Point(1, "b", 0.3, math.nan)]
    return {
        "lines": charts.line_chart(lines, "t", EVIL, "y", bounds=(0.0, 1.0)),
        "logarithms": charts.line_chart(lines, "t", "x", "y", log_y=True),
        "boxes": row_charts.box_chart(samples, "t", EVIL, marker=0.6, bounds=(0.0, 1.0)),
        "bars": row_charts.bar_chart(samples, "t", EVIL, marker=1.0),
        "intervals": row_charts.interval_chart([Interval(0, EVIL, 1.0, 0.5, 1.5), Interval(1, "b", 1.0, *[math.nan] * 2)], "t", "x"),
        "points": charts.point_chart(points, "t", EVIL, "y", front=points[:2]),
        "heat": charts.heat_chart([[1.0, -2.0], [math.nan, 0.0]], [EVIL, "b"], ["c", EVIL], "t", "z"),
    }  # fmt: skip


@pytest.mark.parametrize("name", every_chart())
def test_plotly_takes_every_chart_and_no_text_is_markup(name):
    chart = every_chart()[name]
    plotly.Figure(chart.figure, skip_invalid=False)
    assert "<a" not in str(chart.figure)
    assert "<b" not in str(chart.figure)
    assert chart.description


def test_nothing_to_see_is_no_chart():
    nan = np.full(6, math.nan)
    assert charts.line_chart([], "t", "x", "y") is None
    assert charts.line_chart([Line(0, "a", X, nan)], "t", "x", "y") is None
    assert charts.line_chart([Line(0, "a", X, -X)], "t", "x", "y", log_y=True) is None
    assert row_charts.box_chart([Sample(0, "a", [math.nan])], "t", "x") is None
    assert row_charts.bar_chart([Sample(0, "a", [])], "t", "x") is None
    assert row_charts.interval_chart([], "t", "x") is None
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
    samples = [Sample(0, start + "imtl_g", [1.0]), Sample(1, start + "scale<", [2.0])]
    intervals = [Interval(each.series, each.label, 1.0, 0.5, 1.5) for each in samples]
    names, short = [start + "imtl_g", start + "scale&lt;"], [start[:25] + "…"] * 2
    for chart in (
        row_charts.box_chart(samples, "t", "x"),
        row_charts.bar_chart(samples, "t", "x"),
        row_charts.interval_chart(intervals, "t", "x"),
    ):
        axis = chart.figure["layout"]["yaxis"]
        assert [trace["y"] for trace in chart.figure["data"]] == [[name] for name in names]
        assert (axis["tickvals"], axis["ticktext"]) == (names, short)
    tasks = [sample.label for sample in samples]
    figure = charts.heat_chart([[1.0, 2.0], [3.0, 4.0]], tasks, tasks, "t", "z").figure
    assert figure["data"][0]["x"] == figure["data"][0]["y"] == names
    assert figure["layout"]["xaxis"]["ticktext"] == figure["layout"]["yaxis"]["ticktext"] == short


def test_bounds_never_hide_data():
    percent = row_charts.box_chart([Sample(0, "a", [93.0, 95.0])], "t", "accuracy", bounds=(0.0, 1.0))
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
