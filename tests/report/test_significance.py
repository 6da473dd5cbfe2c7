"""Corrections, intervals, power, ranks and hypervolumes, by hand and against scipy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtlkit.errors import SpecError
from mtlkit.report.fronts import hypervolume, pareto_front
from mtlkit.report.significance import (
    critical_difference,
    holm,
    paired_difference,
    rank_methods,
    seeds_needed,
)

probabilities = st.floats(0, 1)


def test_holm_by_hand():
    # sorted 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, none below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_tests_that_were_not_made_do_not_count():
    found = holm([0.01, math.nan, 0.04])
    assert found[0] == pytest.approx(0.02)
    assert math.isnan(found[1])
    assert found[2] == pytest.approx(0.04)


@given(st.lists(probabilities, min_size=1, max_size=12))
def test_holm_rejects_what_the_steps_of_its_paper_reject(values):
    adjusted = holm(values)
    order = np.argsort(values, kind="stable")
    rejected = set()
    for step, place in enumerate(order):
        if values[place] * (len(values) - step) >= 0.05:
            break
        rejected.add(int(place))
    assert {place for place, value in enumerate(adjusted) if value < 0.05} == rejected
    assert all(new >= old for new, old in zip(adjusted, values, strict=True))


def test_the_interval_of_a_difference_by_hand():
    # differences 1, 2, 3: mean 2, s = 1, t(2) = 4.3027
    found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.pairs) == (2.0, 1.0, 3)
    assert found.high - found.mean == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert paired_difference([2.0, 4.0], [1.0, 2.0], higher_is_better=False).mean == -1.5
    single = paired_difference([2.0, math.nan], [1.0, 2.0])
    assert (single.mean, single.pairs) == (1.0, 1)
    assert math.isnan(single.low)
    assert paired_difference([], []).pairs == 0
    with pytest.raises(SpecError, match="one length"):
        paired_difference([1.0], [1.0, 2.0])


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=9))
def test_the_interval_equals_scipys(pairs):
    first, second = np.array(pairs).T
    if np.ptp(first - second) < 1e-6:
        return
    found = paired_difference(first, second)
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert found.low == pytest.approx(expected.low, rel=1e-6, abs=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 156), (0.5, 27), (0.8, 12), (math.inf, 2)])
def test_the_number_of_seeds_is_that_of_the_tables(effect, seeds):
    """Cohen's small, medium and large effect, one-sided at 0.05 with a power of 0.8."""
    assert seeds_needed(effect) == seeds


def test_so_many_seeds_have_the_power_and_one_fewer_has_not():
    random = np.random.default_rng(0)

    def power(seeds):
        drawn = random.normal(1.0, 1.0, (20_000, seeds))
        return (stats.ttest_1samp(drawn, 0, axis=1, alternative="greater").pvalue < 0.01).mean()

    seeds = seeds_needed(1.0, level=0.01)
    assert power(seeds) > 0.79
    assert power(seeds - 1) < 0.81


def test_no_effect_needs_no_number():
    assert seeds_needed(0.0) is None
    assert seeds_needed(-1.0) is None
    assert seeds_needed(math.nan) is None
    assert seeds_needed(0.001) is None


def test_the_critical_difference_is_that_of_demsars_examples():
    # Demšar 2006, section 3.2.2: four classifiers on 14 data sets, q = 2.569
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(2, 1) == pytest.approx(1.960, abs=0.001)
    assert critical_difference(10, 1) == pytest.approx(3.164 * math.sqrt(110 / 6), abs=0.01)


def test_ranks_by_hand_and_friedman_by_scipy():
    gains = [[3.0, 3.0, 3.0, 3.0], [2.0, 1.0, 2.0, 2.0], [1.0, 2.0, 1.0, 2.0]]
    found = rank_methods(["a", "b", "c"], gains)
    assert found.labels == ["a", "b", "c"]
    assert found.ranks == pytest.approx([1.0, (2 + 3 + 2 + 2.5) / 4, (3 + 2 + 3 + 2.5) / 4])
    assert found.p_value == pytest.approx(stats.friedmanchisquare(*gains).pvalue)
    # the critical difference is 2.344 * sqrt(12 / 24) = 1.657
    assert found.critical == pytest.approx(1.657, abs=0.001)
    assert found.groups == [(0, 2)]


def test_groups_are_the_widest_spans_of_ranks_that_are_close():
    random = np.random.default_rng(0)
    gains = np.arange(4.0)[:, None] + 0.01 * random.random((4, 12))
    found = rank_methods(["d", "c", "b", "a"], gains)
    assert found.labels == ["a", "b", "c", "d"]
    assert found.ranks == [1.0, 2.0, 3.0, 4.0]
    assert 1 < found.critical < 2
    assert found.groups == [(0, 1), (1, 2), (2, 3)]


def test_a_method_without_a_value_has_no_rank():
    found = rank_methods(["a", "b", "c"], [[1.0, 2.0], [math.nan, 3.0], [2.0, 3.0]])
    assert found.labels == ["c", "a"]
    assert math.isnan(found.p_value)
    assert rank_methods(["a"], [[1.0]]).labels == []
    assert rank_methods([], []).labels == []


def test_the_front_holds_what_nothing_dominates():
    points = [[1, 3], [2, 2], [3, 1], [1, 1], [2, 2], [math.nan, 9], [2, 1]]
    assert pareto_front(points).tolist() == [True, True, True, False, False, False, False]


def test_hypervolumes_by_hand():
    assert hypervolume([[2, 3]], [0, 1]) == 4
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [0, 0]) == 6
    assert hypervolume([[1, 2, 3], [3, 2, 1]], [0, 0, 0]) == 6 + 6 - 2
    assert hypervolume([[1, -1], [0, 5], [math.nan, 1]], [0, 0]) == 0
    assert hypervolume([], [0, 0]) == 0
    with pytest.raises(SpecError, match="infinity"):
        hypervolume([[math.inf, 1]], [0, 0])
    with pytest.raises(SpecError, match="one finite number per task"):
        hypervolume([[1, 1]], [0, math.nan])


def by_inclusion_and_exclusion(boxes):
    return sum(
        (-1) ** (size + 1) * np.min(chosen, axis=0).prod()
        for size in range(1, len(boxes) + 1)
        for chosen in itertools.combinations(boxes, size)
    )


@pytest.mark.parametrize(
    ("axes", "tolerance"), [(2, 1e-12), (3, 1e-12), (4, 1e-12), (5, 3e-3), (9, 3e-3)]
)
def test_the_hypervolume_is_that_of_inclusion_and_exclusion(axes, tolerance):
    boxes = np.random.default_rng(axes).dirichlet(np.ones(axes), 8) + 0.2
    reference = np.arange(float(axes))
    found = hypervolume(boxes + reference, reference)
    assert found == pytest.approx(by_inclusion_and_exclusion(boxes), rel=tolerance)
