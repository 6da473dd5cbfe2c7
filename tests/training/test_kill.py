"""A run that is killed and resumed ends with exactly the parameters of one that was left alone."""

import json
import random
import signal
import time

import pytest
import torch

from tests.training.processes import run_here, run_processes, start_processes

OPTIONS = {
    "method": "rotograd",
    "dropout": 0.3,
    "save_steps": 3,
    "gradient_accumulation_steps": 2,
    "logging_steps": 4,
    "validate": True,
    "data": {"size": 90, "batch": 4, "missing": 0.2},
}


def settings(folder, name: str, epochs: int, pause: float = 0.0) -> dict:
    return {
        **OPTIONS,
        "pause": pause,
        "output": str(folder / name),
        "save": str(folder / f"{name}.pt"),
        "fit": {"epochs": epochs, "resume": "auto"},
    }


def arguments(*given) -> list[str]:
    return ["-m", "tests.training.run_small", json.dumps(settings(*given))]


def kill_and_resume(folder, kills: int, seed: int) -> None:
    random.seed(seed)
    epochs = 2 + 2 * kills + kills // 4  # an epoch takes half a second, and a life one at most
    run_here(settings(folder, "whole", epochs))
    log = folder / "killed" / "log.jsonl"
    for _ in range(kills):
        (process,) = start_processes(arguments(folder, "killed", epochs, 0.02), 1)
        before = log.stat().st_mtime_ns if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_mtime_ns == before):
            time.sleep(0.02)
        time.sleep(random.random())
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"it ended before it was killed:\n{output}"
    run_processes(arguments(folder, "killed", epochs))
    whole = torch.load(folder / "whole.pt", weights_only=True)
    killed = torch.load(folder / "killed.pt", weights_only=True)
    assert whole["step"] == killed["step"] == 12 * epochs
    assert torch.equal(whole["parameters"], killed["parameters"])
    assert whole["metrics"] == killed["metrics"]
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == sorted(steps), "the log holds a step twice"


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path):
    kill_and_resume(tmp_path, kills=1, seed=0)


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_as_if_it_had_not_been(tmp_path):
    kill_and_resume(tmp_path, kills=20, seed=1)
