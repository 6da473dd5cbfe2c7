"""Train what ``front.yaml`` says, and store every run.

    python -m benchmarks.front -o runs/front [--tune]

writes a line per run to ``benchmarks/results/front/runs.jsonl``; runs that it already has are kept.
``--tune`` trains on seed 99 with four learning rates and prints hypervolumes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.front.volumes import METRICS, volume
from mtlkit.config.spec import parse_spec
from mtlkit.experiments.compare import load_tasks, plan_jobs
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.front import front
from mtlkit.experiments.jobs import Job, run_job
from mtlkit.report.results import FRONT

CONFIG = Path(__file__).with_name("front.yaml")
RUNS = Path(__file__).parents[1] / "results" / "front" / "runs.jsonl"


def weights_of(job: Job) -> list[float]:
    """Return the weights of a weighted sum, in task order."""
    return list(parse_spec(job.train["method"])[-1].options["weights"].values())


def measure(job: Job, weightings: list[list[float]]) -> dict[str, Any]:
    """Train, and return the main metrics at the weightings with the CPU seconds of all that."""
    start = time.process_time()
    outcome = run_job(job)
    if outcome.error:
        raise RuntimeError(outcome.error)
    if job.kind == FRONT:
        found = [outcome.metrics]
    else:
        found = list(front(job.folder, points=weightings, device="cpu").metrics)
    points = [[row[task][name] for task, name in METRICS.items()] for row in found]
    seconds = time.process_time() - start
    return {"label": job.label, "seed": job.seed, "cpu_seconds": round(seconds, 2), "points": points}


def plan(output: Path, **changes: Any) -> tuple[list[Job], list[list[float]]]:
    """Return all trainings, seed by seed, and the weightings."""
    config = CompareConfig.read(CONFIG, **changes)
    names = [task.name for task in load_tasks(config, 0)[1]]
    # without the plain sum that every comparison adds
    jobs = [job for job in plan_jobs(config, output, names) if job.label != "sum"]
    sums = [job for job in jobs if job.kind == FRONT and job.seed == config.seeds[0]]
    return jobs, [weights_of(job) for job in sums]


def tune(output: Path) -> None:
    """Print hypervolumes on seed 99 for four learning rates, the sums' from four weightings."""
    for rate in (1e-3, 3e-3, 1e-2, 3e-2):
        jobs, weightings = plan(output / str(rate), seeds=[99], lr=rate)
        for job in jobs[:2]:
            found = measure(job, weightings)["points"]
            print(rate, job.label, f"{volume(found):.4f}", f"{volume(found[:4]):.4f}", flush=True)
        found = [measure(job, weightings)["points"][0] for job in jobs[4:8]]
        print(rate, "four sums", f"{volume(found):.4f}", found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/front"))
    parser.add_argument("--tune", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.tune:
        tune(given.output / "tune")
        return
    known = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    done = {(run["label"], run["seed"]) for run in known}
    jobs, weightings = plan(given.output)
    for job in jobs:
        if (job.label, job.seed) not in done:
            line = json.dumps(measure(job, weightings))
            with RUNS.open("a") as file:
                file.write(line + "\n")
            print(job.label, job.seed, flush=True)


if __name__ == "__main__":
    main()
