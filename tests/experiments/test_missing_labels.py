"""Comparisons on tables in which most labels are missing, and with very many tasks."""

import math
from pathlib import Path

import numpy as np
import pytest

from mtlkit.experiments import launchers
from mtlkit.experiments.compare import run_comparison
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.jobs import Outcome
from mtlkit.report import build_table


def write_table(path: Path, rows: int, targets: int, every: int) -> str:
    """Write a CSV in which each target has a label in every ``every``-th row; return its data set."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(rows, 4))
    slopes = random.normal(size=(4, targets))
    names = [f"y{k}" for k in range(targets)]
    lines = [",".join(["a", "b", "c", "d", *names])]
    for row, values in enumerate(inputs):
        labels = [
            f"{values @ slopes[:, k]:.4f}" if (row + k) % every == 0 else "" for k in range(targets)
        ]
        lines.append(",".join([*(f"{value:.4f}" for value in values), *labels]))
    path.write_text("\n".join(lines) + "\n")
    kinds = ", ".join(f"{name}: regression" for name in names)
    return f"table(file='{path}', targets={{{kinds}}})"


def make(data: str, **changes) -> CompareConfig:
    common = {"data": data, "methods": ["sum"], "seeds": 1, "epochs": 1, "batch_size": 16}
    return CompareConfig.make({**common, "timing": 0, "jobs": 1, "baselines": False, **changes})


@pytest.mark.parametrize("missing", [90, 99])
def test_single_task_networks_skip_batches_without_their_labels(tmp_path, missing):
    data = write_table(tmp_path / "t.csv", 2000, 3, 100 // (100 - missing))
    made = run_comparison(make(data), tmp_path / "out", progress=False)
    assert [(run.label, run.status, run.error) for run in made.runs] == [
        ("single-task", "done", ""),
        ("sum", "done", ""),
    ]
    steps = {run.label: run.steps for run in made.runs}
    assert 0 < steps["single-task"] < 3 * steps["sum"]
    row = next(row for row in build_table(made).rows if row.label == "sum")
    assert math.isfinite(row.cells["delta/mean"].spread.median)


def test_a_single_task_network_that_fails_does_not_blank_the_other_tasks(tmp_path, monkeypatch):
    data = write_table(tmp_path / "t.csv", 200, 3, 1)
    real = launchers.run_job
    monkeypatch.setattr(
        launchers, "run_job", lambda job: Outcome(error="boom") if job.task == "y1" else real(job)
    )
    made = run_comparison(make(data), tmp_path / "out", progress=False)
    single = made.find("single-task", 0)
    assert (single.status, single.error) == ("done", "y1: boom")
    assert set(single.metrics) == {"y0", "y2"}
    row = next(row for row in build_table(made).rows if row.label == "sum")
    assert math.isfinite(row.cells["delta/mean"].spread.median)
    # the next call tries the missing one again
    monkeypatch.setattr(launchers, "run_job", real)
    again = run_comparison(make(data), tmp_path / "out", progress=False).find("single-task", 0)
    assert (again.error, set(again.metrics)) == ("", {"y0", "y1", "y2"})


def test_two_hundred_tasks_are_compared(tmp_path):
    data = write_table(tmp_path / "t.csv", 120, 200, 1)
    settings = {"methods": ["sum", "imtl_g"], "single_task": False, "batch_size": 32}
    made = run_comparison(make(data, **settings), tmp_path / "out", progress=False)
    assert [(run.label, run.status, len(run.metrics)) for run in made.runs] == [
        ("sum", "done", 200),
        ("imtl_g", "done", 200),
    ]
    assert (tmp_path / "out" / "report.html").stat().st_size > 0
