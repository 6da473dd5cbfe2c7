"""Corrections, intervals, detectable differences, ranks and hypervolumes, by hand and against SciPy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from mtlkit.errors import SpecError
from mtlkit.report.fronts import hypervolume, pareto_front
from mtlkit.report.significance import (
    endpoint_intervals,
    estimate,
    holm,
    rank_methods,
    task_intervals,
)

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=12)
differences = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(2, 6)),
    elements=st.floats(-10, 10).map(lambda value: round(value, 3)),
)


def test_holm_by_hand():
    # sorted 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, none below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]).size == 0
    assert holm([0.6, 0.9]).tolist() == [1.0, 1.0]


def test_tests_that_were_not_made_do_not_count():
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)


@given(probabilities)
def test_holm_rejects_what_the_steps_of_its_paper_reject(values):
    adjusted = holm(values)
    rejected = set()
    for step, place in enumerate(np.argsort(values, kind="stable")):
        if values[place] * (len(values) - step) >= 0.05:
            break
        rejected.add(int(place))
    assert set(np.flatnonzero(adjusted < 0.05)) == rejected


@given(probabilities, st.data())
def test_holm_keeps_the_order_is_never_smaller_and_grows_with_every_further_test(values, data):
    adjusted = holm(values)
    assert (adjusted >= values).all()
    assert (np.diff(adjusted[np.argsort(values, kind="stable")]) >= 0).all()
    more = data.draw(st.floats(0, 1))
    assert (holm([*values, more])[:-1] >= adjusted - 1e-12).all()
    place = data.draw(st.integers(0, len(values) - 1))
    smaller = [*values]
    smaller[place] *= data.draw(st.floats(0, 1))
    assert (holm(smaller) <= adjusted + 1e-12).all()


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_one_test_alone_is_the_paired_t_test(values):
    spread = np.std(values, ddof=1)
    if spread < 1e-6:
        return
    expected = stats.ttest_1samp(values, 0.0)
    found = estimate([values])
    assert found.p_values[0] == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    ((interval,),) = endpoint_intervals([values])
    low, high = expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9)


def test_the_variance_is_the_larger_of_the_own_and_the_mean_over_all_tests():
    # variances 1 and 0.01, mean 0.505; two tests of two degrees: 4 / (1 + 1/4)
    found = estimate([[1.0, 2.0, 3.0], [2.0, 2.1, 2.2]])
    assert found.error == pytest.approx([math.sqrt(1 / 3), math.sqrt(0.505 / 3)])
    assert found.freedom == pytest.approx([3.2])


@given(differences, st.data())
def test_the_order_of_methods_and_of_seeds_does_not_matter(values, data):
    methods = data.draw(st.permutations(range(len(values))))
    seeds = data.draw(st.permutations(range(values.shape[1])))
    (found,) = endpoint_intervals(values)
    (other,) = endpoint_intervals(values[methods][:, seeds])
    for place, method in enumerate(methods):
        assert other[place].p_value == pytest.approx(found[method].p_value, rel=1e-6, abs=1e-9)
        assert other[place].low == pytest.approx(found[method].low, rel=1e-6, abs=1e-6, nan_ok=True)


@given(differences)
def test_exchanging_method_and_reference_turns_every_finding_around(values):
    (found,), (turned,) = endpoint_intervals(values), endpoint_intervals(-values)
    for one, other in zip(found, turned, strict=True):
        assert one.p_value == pytest.approx(other.p_value)
        assert (one.better, one.worse) == (other.worse, other.better)
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low), nan_ok=True)


@given(differences, differences)
def test_an_interval_excludes_zero_exactly_where_the_test_is_significant(first, second):
    for family in endpoint_intervals(first, second):
        for each in family:
            if not math.isnan(each.low):
                assert (each.low >= 0 or each.high <= 0) == (each.better or each.worse) or each.mean == 0


def test_a_second_family_shares_the_error_budget():
    values = [[1.0, 1.3, 1.1, 0.8]]
    ((alone,),) = endpoint_intervals(values)
    (beside,), _ = endpoint_intervals(values, [[0.1, -0.2, 0.3, 0.0]])
    assert beside.p_value == pytest.approx(2 * alone.p_value)
    assert beside.high - beside.low > alone.high - alone.low


def test_missing_seeds_are_left_out_and_one_pair_is_no_test():
    (found,) = endpoint_intervals([[1.0, 2.0, math.nan], [1.0, math.nan, math.nan]])
    assert [each.pairs for each in found] == [2, 1]
    assert math.isnan(found[1].p_value)
    assert math.isnan(found[1].low)
    assert found[0].p_value == pytest.approx(stats.ttest_1samp([1.0, 2.0], 0.0).pvalue)


def test_equal_differences_are_no_proof_beyond_the_sign_test():
    (found,) = endpoint_intervals([[0.5, 0.5, 0.5]])
    assert found[0].p_value == pytest.approx(2 * 0.5**3)
    assert math.isnan(found[0].low)


def test_tasks_are_tested_only_for_the_methods_that_were_found():
    strong, weak = [3.0, 3.1, 2.9, 3.05], [0.1, -0.1, 0.05, 0.0]
    left, right = task_intervals([[strong, strong], [weak, weak]], [True, False], tests=2)
    assert left[0].better
    assert right[0].p_value > 0.05
    assert math.isnan(left[1].p_value)
    assert left[1].low > 0  # an interval nevertheless, to be drawn


def test_a_method_that_varies_more_than_all_others_is_not_found_by_their_variance():
    quiet = np.random.default_rng(0).normal(size=(6, 3)) * 0.01
    (found,) = endpoint_intervals([[9.0, -1.0, 1.0], *quiet])
    assert not found[0].better


def test_the_smallest_detectable_difference_has_the_power():
    random = np.random.default_rng(0)
    trial = estimate(random.normal(size=(1, 5)))  # one test: the ordinary t-test
    shift = trial.detectable(tests=4) / float(trial.typical[0]) / math.sqrt(5)
    drawn = random.normal(loc=shift, size=(20_000, 1, 5))
    power = (estimate(drawn).p_values[:, 0] < 0.05 / 4).mean()
    assert power == pytest.approx(0.8, abs=0.02)
    assert math.isnan(estimate([[1.0]]).detectable(tests=1))


def test_ranks_by_hand():
    # two seeds of two tasks
    gains = [[[3, 3], [3, 1]], [[2, 2], [2, 3]], [[1, 1], [1, 2]]]
    found = rank_methods(["a", "b", "c"], gains)
    assert found.labels == ["a", "b", "c"]
    assert found.ranks == [1.5, 1.75, 2.75]


def test_correlated_tasks_do_not_count_as_blocks():
    """One seed on which a wins twenty copies of a task is no evidence; ten seeds of one task are."""
    copies = np.broadcast_to(np.array([3.0, 2.0, 1.0])[:, None, None], (3, 1, 20))
    assert rank_methods(["a", "b", "c"], copies).p_value > 0.9
    seeds = np.broadcast_to(np.array([3.0, 2.0, 1.0])[:, None, None], (3, 10, 1))
    assert rank_methods(["a", "b", "c"], seeds).p_value < 0.001


def test_ranks_of_methods_that_do_not_differ_are_called_different_in_a_twentieth():
    random = np.random.default_rng(0)
    found = []
    for _ in range(200):
        run = random.normal(size=(5, 4, 1)) + 0.5 * random.normal(size=(5, 4, 6))  # tasks correlate
        found.append(rank_methods(list("abcde"), run).p_value < 0.05)
    assert np.mean(found) < 0.1


def test_a_method_without_a_value_has_no_rank():
    gains = [[[1.0, 2.0]], [[math.nan, 9.0]], [[0.0, 1.0]]]
    assert rank_methods(["a", "b", "c"], gains).labels == ["a", "c"]
    assert rank_methods(["a"], [[[1.0]]]).labels == []


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
