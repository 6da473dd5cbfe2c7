"""Laws of the affinity, and of the rules over any measurement."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn
from scipy import stats

import mtlkit
from mtlkit.diagnosis import RULES, Diagnosis, Measurement
from mtlkit.diagnosis.affinity import affinity, agreement, conflicts, effect_of_others, group_tasks, tree
from mtlkit.diagnosis.rules import NOTHING


@st.composite
def gradients(draw):
    """(S, K, N) gradients without zeros, so that every task is there in every step."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(2, 5), st.just(6)))
    values = draw(drawn.arrays(float, shape, elements=st.floats(-1, 1, width=32)))
    return values + np.where(np.abs(values).sum(axis=2, keepdims=True) < 0.1, 1.0, 0.0)


def gram_of(rows):
    return rows @ rows.transpose(0, 2, 1)


@given(gradients())
def test_the_diagonal_is_one_and_a_pairs_product_is_at_most_one(rows):
    table = affinity(gram_of(rows))
    np.testing.assert_allclose(table.diagonal(), 1.0)
    assert (table * table.T <= 1 + 1e-9).all()
    assert (np.abs(agreement(table)) <= 1).all()


@given(gradients(), st.data())
def test_a_task_in_other_units_brings_others_more_and_is_brought_less(rows, data):
    factor = data.draw(st.floats(1e-3, 1e3))
    scaled = rows.copy()
    scaled[:, 0] *= factor
    before, after = affinity(gram_of(rows)), affinity(gram_of(scaled))
    np.testing.assert_allclose(after[1:, 0], factor * before[1:, 0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(after[0, 1:], before[0, 1:] / factor, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(agreement(after), agreement(before), atol=1e-6)


@given(gradients(), st.randoms())
def test_tasks_may_be_permuted(rows, random):
    order = list(range(rows.shape[1]))
    random.shuffle(order)
    table = affinity(gram_of(rows))
    np.testing.assert_allclose(affinity(gram_of(rows[:, order])), table[np.ix_(order, order)], atol=1e-9)


@given(gradients())
def test_the_others_effect_is_that_of_their_sum(rows):
    expected = []
    for i in range(rows.shape[1]):
        others = np.delete(rows, i, axis=1).sum(axis=1)
        expected.append((rows[:, i] * others).sum() / (rows[:, i] ** 2).sum())
    np.testing.assert_allclose(effect_of_others(gram_of(rows)), expected, atol=1e-6)


@given(gradients())
def test_groups_hold_every_task_once(rows):
    groups = group_tasks(affinity(gram_of(rows)))
    assert sorted(task for group in groups for task in group) == list(range(rows.shape[1]))


def test_absent_tasks_leave_the_others_as_they_are():
    rows = np.random.default_rng(0).normal(size=(6, 3, 5))
    gram = gram_of(rows)
    gram[2:, 1, :] = gram[2:, :, 1] = np.nan
    table = affinity(gram)
    np.testing.assert_allclose(table[0, 2], affinity(gram_of(rows))[0, 2])
    np.testing.assert_allclose(table[0, 1], affinity(gram_of(rows[:2]))[0, 1])
    gram[:, 1, :] = gram[:, :, 1] = np.nan
    assert np.isnan(affinity(gram)[1]).all()
    assert np.isfinite(effect_of_others(gram)[[0, 2]]).all()


def test_persistence_tells_lasting_conflicts_from_chance():
    signs = np.array([-1, -1, -1, 1, 1, -1], dtype=float)
    cosines = np.ones((6, 2, 2))
    cosines[:, 0, 1] = cosines[:, 1, 0] = signs
    share, lasting = conflicts(cosines)
    assert share[0, 1] == pytest.approx(4 / 6)
    assert lasting[0, 1] == pytest.approx(2 / 3)  # of the first three, two are followed by another


def test_a_single_task_has_no_tree():
    assert tree(np.ones((1, 1))) is None
    assert group_tasks(np.ones((1, 1))) == [[0]]


@st.composite
def measurements(draw):
    steps, tasks = draw(st.integers(1, 25)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = generator.normal(size=(steps, tasks, 3)) + 3 * generator.normal(size=(1, tasks, 3))
    rows *= 10.0 ** generator.uniform(-3, 3, size=(1, tasks, 1))
    norms = np.linalg.norm(rows, axis=2)
    cosines = gram_of(rows / norms[:, :, None])
    gone = generator.random((steps, tasks)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    norms[gone] = np.nan
    cosines[gone] = cosines.transpose(0, 2, 1)[gone] = np.nan
    features = draw(st.integers(0, 10))
    shared = np.full((tasks, tasks), draw(st.integers(0, 3)))
    np.fill_diagonal(shared, draw(st.integers(0, 100)))
    return Measurement(
        tasks=tuple("abcde"[:tasks]),
        wrt=draw(st.sampled_from(["features", "parameters"])),
        losses=np.where(gone, np.nan, generator.normal(size=(steps, tasks)) ** 2),
        norms=norms,
        cosines=cosines,
        shared_samples=shared,
        most_together=draw(st.integers(0, tasks)),
        forked=draw(st.booleans()),
        features=features,
        dead_features=draw(st.integers(0, features)),
        not_finite=draw(st.integers(0, steps)),
        seconds=1.0,
    )


@given(measurements())
def test_there_is_always_an_answer_and_never_advice_without_a_figure(measured):
    found = Diagnosis.of(measured)
    assert found.findings
    for finding in found.findings:
        assert re.search(r"\d", finding.figure)
        assert finding.advice
        assert finding.why
        assert "nan" not in finding.figure.split()
    repairs = [finding for finding in found.findings if finding.kind == "repair"]
    assert (found.findings[0].rule == "nothing") == (not repairs)
    assert str(found)


@given(measurements())
def test_a_rise_is_measured_by_the_steps_that_have_the_task(measured):
    figures = Diagnosis.of(measured).figures
    quarter = max(2, figures.steps // 4)
    for k, rise in enumerate(figures.loss_rise):
        ends = figures.losses[:quarter, k], figures.losses[-quarter:, k]
        first, last = (end[np.isfinite(end)] for end in ends)
        if min(len(first), len(last)) < 2:
            assert np.isnan(rise)  # one value says nothing about chance
        else:
            assert rise == pytest.approx(stats.ttest_ind(last, first, equal_var=False).statistic)


def test_advice_names_methods_and_networks_that_exist():
    known = {*mtlkit.list_methods(), *mtlkit.list_architectures()}
    for rule in (*RULES, NOTHING):
        for name in re.findall(r"`([^`]+)`", rule.advice):
            word = name.partition("(")[0]
            assert word in known or name in (
                "max_grad_norm",
                "wrt=parameters",
                "batches=all",
                "mtlkit tune",
            ), name
