"""What ``mtlkit compare --dry-run`` prints: what would run, and about how long it takes."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

from mtlkit.experiments.compare import first_jobs, plan_jobs, task_records
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.header import threads_of
from mtlkit.experiments.jobs import load_data, planned_steps, read_outcome
from mtlkit.experiments.launchers import number_of_jobs
from mtlkit.experiments.preflight import check_first_step
from mtlkit.experiments.progress import clock
from mtlkit.experiments.timing import measure_steps

_ROUNDS = 5


def describe_plan(config: CompareConfig, folder: Path) -> list[str]:
    """Describe the trainings that are not done yet; a few steps of every method are timed.

    The time is that of the steps alone; validations and the test come on top of it.
    """
    names = [task.name for task in task_records(config)]
    jobs = plan_jobs(config, folder, names, threads_of(folder, config))
    waiting = [job for job in jobs if read_outcome(job) is None]
    number = number_of_jobs(config.jobs, config.device)
    lines = [
        f"data: {config.data}; {len(names)} tasks: {_some(names)}",
        f"output: {folder}; {len(jobs) - len(waiting)} of {len(jobs)} trainings are done",
    ]
    if not waiting:
        return lines
    check_first_step(waiting, elsewhere=config.launcher == "submitit")
    firsts = first_jobs(config, jobs)
    seconds = {k: statistics.median(v) for k, v in measure_steps(firsts, _ROUNDS).items()}
    usual = statistics.median(seconds.values()) if seconds else 0.0
    total = 0.0
    for label, count in Counter(job.label for job in waiting).items():
        job = next(job for job in waiting if job.label == label)
        steps = planned_steps(job.config(), load_data(job.config()))[0] // job.divide_steps
        each = seconds.get(label, usual)
        total += count * steps * each
        times = f"{count} training{'s' * (count > 1)} of {steps} steps"
        lines.append(f"  {label}: {times}, {1000 * each:.3g} ms a step")
    lines.append(
        f"about {clock(total / min(number, len(waiting)))} with {number} at a time, "
        "validations not included"
    )
    return lines


def _some(names: list[str], most: int = 8) -> str:
    rest = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
