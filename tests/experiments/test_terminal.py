"""Tables in terminals of every width, and what is shown while trainings run."""

import io
import time

import numpy as np
import pytest
from rich.console import Console

from mtlkit.experiments import progress as progress_module
from mtlkit.experiments.jobs import Job
from mtlkit.experiments.launchers import number_of_jobs, threads_per_job
from mtlkit.experiments.progress import Display
from mtlkit.experiments.terminal import render_table
from mtlkit.report import build_table
from mtlkit.report.results import Comparison, Run, TaskRecord

TASKS = [TaskRecord(f"task{k}", {"accuracy": True}) for k in range(6)]


def comparison(tasks=TASKS) -> Comparison:
    random = np.random.default_rng(0)
    runs = [
        Run(label, seed, metrics={t.name: {"accuracy": random.uniform(0.3, 0.9)} for t in tasks})
        for label in ("single-task", "sum", "rotate(size=512)+imtl_g(wrt=parameters)")
        for seed in range(3)
    ]
    return Comparison("x", list(tasks), runs, baseline="single-task", reference="sum")


def shown(width: int, made: Comparison) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(render_table(build_table(made), width))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 159, 160, 220])
@pytest.mark.parametrize("tasks", [2, 6, 40])
def test_no_number_is_cut_at_any_width(width, tasks):
    made = comparison([TaskRecord(f"task{k}", {"accuracy": True}) for k in range(tasks)])
    lines = shown(width, made)
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    assert "log-ratio" in "".join(lines)  # the primary endpoint stays longest
    whole = " ".join(shown(5000, made)).split()
    numbers = [word for line in lines for word in line.split() if word.startswith((".", "-."))]
    assert numbers or width < 60
    assert all(any(word.rstrip("†‡*") in full for full in whole) for word in numbers)


def test_deviations_need_a_wide_terminal():
    assert "±" not in "".join(shown(120, comparison()))
    assert "±" in "".join(shown(220, comparison()))


def test_a_long_silence_is_broken_by_a_line_about_what_runs(monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "_SILENCE", 0.1)
    job = Job("nowhere", "sum", 0, {})
    with Display("title", 2, str) as display:
        display.started(job)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (text := capsys.readouterr().err):
            time.sleep(0.05)
        display.ended(job, "done")
    assert "0 of 2 training runs" in text
    assert "sum, seed 0" in text


def test_threads_of_the_environment_do_not_limit_the_trainings_at_a_time(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert (number_of_jobs(None, "cpu"), threads_per_job(2, "cpu")) == (4, 1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (number_of_jobs(None, "cpu"), threads_per_job(2, "cpu")) == (4, 2)
