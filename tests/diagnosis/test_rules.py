"""Laws of the rules over any measurement."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import mtlkit
from mtlkit.diagnosis import RULES, Diagnosis, Measurement
from mtlkit.diagnosis.rules import NOTHING
from tests.diagnosis.directed import finding, rules


def measurement(rows, **changes):
    """A measurement of (S, K, N) gradients, with plenty of labels."""
    norms = np.linalg.norm(rows, axis=2)
    steps, tasks, _ = rows.shape
    unit = rows / norms[:, :, None]
    given = {
        "tasks": tuple(f"t{k}" for k in range(tasks)),
        "wrt": "features",
        "losses": np.ones((steps, tasks)),
        "norms": norms,
        "cosines": unit @ unit.transpose(0, 2, 1),
        "similarity": np.full((steps, tasks, tasks), np.nan),
        "shared_samples": np.full((tasks, tasks), 1000),
        "most_together": tasks,
        "forked": True,
        "features": 0,
        "dead_features": 0,
        "not_finite": 0,
        "seconds": 1.0,
    }
    return Measurement(**(given | changes))


@st.composite
def measurements(draw):
    steps, tasks = draw(st.integers(1, 25)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = generator.normal(size=(steps, tasks, 3)) + 3 * generator.normal(size=(1, tasks, 3))
    rows *= 10.0 ** generator.uniform(-3, 3, size=(1, tasks, 1))
    gone = generator.random((steps, tasks)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    features = draw(st.integers(0, 10))
    shared = np.full((tasks, tasks), draw(st.sampled_from([0, 3, 60])))
    np.fill_diagonal(shared, draw(st.integers(0, 100)))
    made = measurement(
        rows,
        wrt=draw(st.sampled_from(["features", "parameters"])),
        losses=np.where(gone, np.nan, generator.normal(size=(steps, tasks)) ** 2),
        shared_samples=shared,
        most_together=draw(st.integers(0, tasks)),
        forked=draw(st.booleans()),
        features=features,
        dead_features=draw(st.integers(0, features)),
        not_finite=draw(st.integers(0, steps)),
    )
    made.norms[gone] = np.nan
    made.cosines[gone] = made.cosines.transpose(0, 2, 1)[gone] = np.nan
    return made


@given(measurements())
def test_there_is_always_an_answer_and_never_advice_without_a_number(measured):
    found = Diagnosis.of(measured)
    assert found.findings
    for each in found.findings:
        assert re.search(r"\d", each.text)
        assert each.advice
        assert each.why
        assert "nan" not in each.text.split()
    repairs = [each for each in found.findings if each.kind == "repair"]
    assert (found.findings[0].rule == "nothing") == (not repairs)
    assert str(found)


@given(measurements(), st.data())
def test_the_scale_of_a_loss_changes_nothing_about_directions(measured, data):
    factors = 10.0 ** np.array(data.draw(st.lists(st.floats(-3, 3), min_size=5, max_size=5)))
    scaled = replace(measured, norms=measured.norms * factors[: len(measured.tasks)])
    before, after = Diagnosis.of(measured), Diagnosis.of(scaled)
    np.testing.assert_array_equal(before.summary.help, after.summary.help)
    by_direction = {"lasting conflicts", "small conflicts", "canceled progress", "help", "groups"}
    assert rules(before) & by_direction == rules(after) & by_direction


@given(measurements())
def test_a_rise_is_measured_by_the_steps_that_have_the_task(measured):
    summary = Diagnosis.of(measured).summary
    quarter = max(2, summary.steps // 4)
    for k, rise in enumerate(summary.loss_rise):
        ends = summary.losses[:quarter, k], summary.losses[-quarter:, k]
        first, last = (end[np.isfinite(end)] for end in ends)
        if min(len(first), len(last)) < 2:
            assert np.isnan(rise)  # one value says nothing about chance
        else:
            assert rise == pytest.approx(stats.ttest_ind(last, first, equal_var=False).statistic)


def with_cosines(*means, noise=0.02, steps=100, **changes):
    """Measured pairs (t0, t1), (t0, t2), ... with these mean cosines; all other pairs are orthogonal."""
    generator = np.random.default_rng(0)
    count = len(means) + 1
    made = measurement(generator.normal(size=(steps, count, 50)), **changes)
    made.cosines[:] = np.eye(count)
    for k, mean in enumerate(means, start=1):
        made.cosines[:, 0, k] = made.cosines[:, k, 0] = mean + noise * generator.standard_normal(steps)
    return Diagnosis.of(made)


def test_conflicts_are_judged_by_persistence_and_size_together():
    found = with_cosines(-0.3, -0.047, 0.2)
    assert "t0 and t1" in finding(found, "lasting conflicts").text
    assert "t0 and t2" not in finding(found, "lasting conflicts").text
    assert "t0 and t2" in finding(found, "small conflicts").text  # in nearly all steps, but small
    assert finding(found, "small conflicts").kind == "note"


def test_among_ten_thousand_pairs_of_unrelated_tasks_there_is_no_conflict():
    rows = np.random.default_rng(0).normal(size=(60, 139, 30))
    found = rules(Diagnosis.of(measurement(rows)))
    assert found == {"nothing"}


def test_large_conflicts_of_a_few_steps_or_by_chance_are_none():
    assert "lasting conflicts" not in rules(with_cosines(-0.11, noise=2.0, steps=25))


def test_every_pair_in_conflict_is_named():
    text = finding(with_cosines(*[-0.3] * 8), "lasting conflicts").text
    assert all(f"t0 and t{k} " in text for k in range(1, 9))


@pytest.mark.parametrize("samples", [17, 1000])
def test_pairs_with_few_common_labels_are_not_judged(samples):
    shared = np.full((2, 2), samples)
    np.fill_diagonal(shared, 1000)
    found = with_cosines(-0.5, shared_samples=shared)
    assert ("lasting conflicts" in rules(found)) == (samples == 1000)


def test_without_common_samples_only_methods_at_the_parameters_are_advised():
    shared = np.diag([1000] * 4)
    found = with_cosines(-0.5, -0.4, -0.4, shared_samples=shared, wrt="parameters")
    assert {"different samples", "lasting conflicts"} <= rules(found)
    for each in found.findings:
        names = re.findall(
            r"`(cagrad|upgrad|rotograd|scale|imtl_g|nash_mtl)(\(wrt=parameters\))?`", each.advice
        )
        assert all(at_parameters for _, at_parameters in names), each.advice


def test_drifting_norms_are_not_answered_by_gradnorm():
    rows = np.random.default_rng(0).normal(size=(40, 2, 5))
    rows[:, 0] *= np.geomspace(1, 100, 40)[:, None]
    assert "gradnorm" not in finding(Diagnosis.of(measurement(rows)), "drifting norms").advice


def test_advice_names_methods_and_networks_that_exist():
    known = {*mtlkit.list_methods(), *mtlkit.list_architectures()}
    others = {"wrt=parameters", "batches=all", "mtlkit tune", "max_grad_norm"}
    for rule in (*RULES, NOTHING):
        for name in re.findall(r"`([^`]+)`", rule.advice + rule.at_parameters):
            assert name.partition("(")[0] in known or name in others, name
