"""Gains by three conventions, the paper's statistics against SciPy and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtlkit.report.statistics import (
    confidence_band,
    log_ratio,
    paired_t_test,
    relative_improvement,
    spread,
    task_improvement,
    task_statistics,
)

values = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(
    ("value", "baseline", "higher", "expected"),
    [
        (95.45, 95.70, True, -0.261233),
        (1.85, 1.90, False, 2.631579),
        (2.10, 1.90, False, -10.526316),
        (3.0, 2.0, True, 50.0),
        (2.0, 2.0, False, 0.0),
        (-1.0, -2.0, True, 50.0),
    ],
)
def test_relative_improvement_by_hand(value, baseline, higher, expected):
    assert relative_improvement(value, baseline, higher) == pytest.approx(expected, abs=1e-5)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_relative_improvement_has_the_sign_of_better_and_no_unit(value, baseline, unit):
    gain = relative_improvement(value, baseline, True)
    assert gain == pytest.approx(-relative_improvement(value, baseline, False))
    assert relative_improvement(value * unit, baseline * unit, True) == pytest.approx(gain, abs=1e-6)
    assert (gain > 0) == (value > baseline) or abs(gain) < 1e-9


def test_a_zero_baseline_and_nan_give_no_improvement():
    assert relative_improvement(0.0, 0.0, True) == 0.0
    assert math.isnan(relative_improvement(0.1, 0.0, True))
    assert math.isnan(relative_improvement(math.nan, 1.0, True))
    assert math.isnan(relative_improvement(1.0, math.inf, False))


def test_the_papers_vanilla_row_on_nyuv2_comes_out():
    # from the medians of the metrics; the paper takes medians of improvements, hence the slack
    single = {"miou": 39.21, "pixel_accuracy": 64.59}
    vanilla = {"miou": 38.05, "pixel_accuracy": 64.39}
    assert task_improvement(vanilla, single, {"miou": True, "pixel_accuracy": True}) == pytest.approx(
        -1.63, abs=0.01
    )
    directions = {"mean": False, "median": False, "11": True, "22": True, "30": True}
    single = dict(zip(directions, (25.09, 19.18, 30.01, 57.33, 69.30), strict=True))
    vanilla = dict(zip(directions, (30.02, 26.16, 20.02, 43.47, 56.87), strict=True))
    assert task_improvement(vanilla, single, directions) == pytest.approx(-25.70, abs=0.7)


def test_a_missing_metric_makes_the_improvement_nan():
    assert math.isnan(task_improvement({"a": 1.0}, {"a": 1.0, "b": 2.0}, {"a": True, "b": True}))
    assert math.isnan(task_improvement({}, {}, {}))


def test_statistics_over_tasks_by_hand():
    found = task_statistics([-2.0, 0.0, 1.0, 5.0])
    assert (found.mean, found.median, found.minimum, found.maximum) == (1.0, 0.5, -2.0, 5.0)
    assert found.std == pytest.approx(math.sqrt((9 + 1 + 0 + 16) / 4))


def test_a_failed_task_leaves_no_average():
    assert math.isnan(task_statistics([1.0, math.nan]).mean)
    assert math.isnan(task_statistics([]).median)


def test_median_and_deviation_over_seeds_by_hand():
    found = spread([3.0, 1.0, math.nan, 8.0])
    assert (found.median, found.count) == (3.0, 3)
    assert found.std == pytest.approx(math.sqrt((1 + 9 + 16) / 2))
    assert spread([2.0]).median == 2.0
    assert math.isnan(spread([2.0]).std)
    assert spread([math.nan]).count == 0
    assert spread([1.0, math.inf, 2.0]).median == 2.0
    assert spread([1.0, math.inf, 2.0]).std == math.inf


@given(st.lists(st.tuples(values, values), min_size=2, max_size=12), st.booleans())
def test_the_t_test_equals_scipys(pairs, higher):
    first, second = np.array(pairs).T
    difference = first - second
    if np.ptp(difference) < 1e-6:
        return
    found = paired_t_test(first, second, higher)
    expected = stats.ttest_rel(first, second, alternative="greater" if higher else "less")
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert abs(found.statistic) == pytest.approx(abs(expected.statistic), rel=1e-6)
    assert found.significant == (found.p_value < 0.05)


def test_the_t_test_by_hand():
    # differences 1, 2, 3: mean 2, s = 1, t = 2 * sqrt(3)
    found = paired_t_test([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], True)
    assert found.statistic == pytest.approx(2 * math.sqrt(3))
    assert found.p_value == pytest.approx(0.03709, abs=1e-4)
    assert found.significant
    assert not paired_t_test([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], False).significant


def test_ties_one_seed_and_nan_are_not_significant():
    for undefined in (
        paired_t_test([1.0, 2.0], [1.0, 2.0], True),
        paired_t_test([2.0], [1.0], True),
    ):
        assert math.isnan(undefined.p_value)
        assert not undefined.significant
    left_out = paired_t_test([2.0, math.nan, 4.0, 6.0], [1.0, 2.0, 2.0, 3.0], True)
    assert left_out.pairs == 3
    assert left_out.p_value == pytest.approx(0.03709, abs=1e-4)
    with pytest.raises(ValueError, match="one length"):
        paired_t_test([1.0], [1.0, 2.0], True)


@given(values, st.floats(0.01, 10), st.integers(2, 6))
def test_equal_differences_have_no_dagger_however_they_are_rounded(start, step, count):
    second = start + np.arange(count) * 0.1
    assert not paired_t_test(second + step, second, True).significant
    assert not paired_t_test(second + step, second, False).significant


@given(values, values, st.booleans())
def test_the_log_ratio_is_antisymmetric_and_has_the_sign_of_better(value, baseline, higher):
    gain = log_ratio(value, baseline, higher)
    assert gain == -log_ratio(baseline, value, higher) == -log_ratio(value, baseline, not higher)
    assert np.sign(gain) == np.sign(value - baseline) * (1 if higher else -1) or abs(gain) < 1e-9
    assert abs(gain) <= 100 * math.log(100) + 1e-9


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0.01, 100))
def test_the_log_ratio_grows_with_the_metric(first, second, baseline):
    low, high = sorted((first, second))
    assert log_ratio(low, baseline, True) <= log_ratio(high, baseline, True)


def test_log_ratios_by_hand():
    # three times the error is as bad as a third of it is good; relatively -200 and +67
    assert log_ratio(3.0, 1.0, False) == pytest.approx(-100 * math.log(3))
    assert log_ratio(1 / 3, 1.0, False) == pytest.approx(100 * math.log(3))
    assert log_ratio(0.0, 0.0, True) == 0.0
    assert log_ratio(0.0, 0.5, True) == pytest.approx(-100 * math.log(100))
    assert log_ratio(-50.0, -100.0, True) == pytest.approx(100 * math.log(2))  # a likelihood
    assert math.isnan(log_ratio(math.nan, 1.0, True))


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=2, max_size=8))
def test_the_confidence_band_equals_scipys_interval(rows):
    band = confidence_band(rows, 0.9)
    table = np.array(rows)
    for point in range(3):
        column = table[:, point]
        error = stats.sem(column)
        if error < 1e-9:
            assert band.low[point] == pytest.approx(column.mean(), abs=1e-6)
            continue
        low, high = stats.t.interval(0.9, len(column) - 1, loc=column.mean(), scale=error)
        assert band.low[point] == pytest.approx(low, rel=1e-6, abs=1e-6)
        assert band.high[point] == pytest.approx(high, rel=1e-6, abs=1e-6)


def test_a_band_of_one_run_is_a_line_and_nan_is_left_out():
    band = confidence_band([[1.0, 2.0, math.nan]])
    assert band.mean[:2].tolist() == [1.0, 2.0]
    assert np.isnan(band.low).all()
    assert math.isnan(band.mean[2])
    band = confidence_band([[1.0], [math.nan], [3.0]])
    assert band.mean[0] == 2.0
    assert band.high[0] == pytest.approx(2 + stats.t.ppf(0.95, 1) * 1.0)
    with pytest.raises(ValueError, match="level"):
        confidence_band([[1.0]], level=90)


@pytest.mark.parametrize("value", [0.1, 0.9823147, 1e-12, 3.3e7])
def test_equal_runs_have_no_deviation_whatever_the_rounding_of_their_mean(value):
    assert spread([value] * 3).std == 0
    assert spread([value] * 7).std == 0


def test_infinite_runs_have_an_infinite_deviation():
    assert spread([math.inf, math.inf]).std == math.inf
