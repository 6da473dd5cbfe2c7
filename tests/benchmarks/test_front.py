"""The front of one training against twenty: its plan, volumes and intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.front.__main__ import RUNS, plan
from benchmarks.front.volumes import IDEAL, REFERENCE, TWENTY, interval, read_runs, volume
from mtlkit.report.results import FRONT


def test_the_volume_is_one_for_perfect_metrics_and_zero_for_a_constant():
    assert volume([IDEAL]) == pytest.approx(1.0)
    assert volume([REFERENCE]) == 0.0
    half = (IDEAL + REFERENCE) / 2
    assert volume([half, REFERENCE]) == pytest.approx(1 / 32)


def test_an_interval_grows_with_the_number_of_comparisons():
    differences = np.array([0.1, 0.2, 0.3, 0.2, 0.1])
    mean, low, high = interval(differences, 1)
    assert mean == pytest.approx(0.18)
    assert low == pytest.approx(0.0761, abs=1e-3)  # t = 2.776 with four degrees of freedom
    assert interval(differences, 4)[1] < low < mean < high


def test_networks_with_preferences_are_evaluated_at_the_weightings_of_the_sums(tmp_path):
    jobs, weightings = plan(tmp_path, seeds=[7])
    sums = [job for job in jobs if job.kind == FRONT]
    assert len(sums) == len(weightings) == 20
    assert len(jobs) == 24
    tasks = ["left", "right", "parity", "digit_sum", "pixels"]
    for job, weights in zip(sums, weightings, strict=True):
        assert sum(weights) == pytest.approx(5, abs=0.05)
        assert all(f"{task}" in job.train["method"] for task in tasks)


def test_the_stored_runs_are_whole():
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()]
    assert len(runs) == len({(run["label"], run["seed"]) for run in runs}) == 5 * 24
    volumes, minutes, _ = read_runs(RUNS.parent)
    assert len(volumes[TWENTY]) == 5
    assert all(((found > 0) & (found < 1)).all() for found in volumes.values())
    assert (minutes[TWENTY] > minutes["lora"]).all()
