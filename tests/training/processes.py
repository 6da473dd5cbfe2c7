"""Train in one or several CPU processes, as ``accelerate launch`` would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState

from tests.distributed import launch

ROOT = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **extra}


def start_processes(arguments: list[str], world: int, **extra: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(world):
        peers = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                env=environment(**(peers if world > 1 else {}), **extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )
        )
    return started


def run_processes(arguments: list[str], world: int = 1, **extra: str) -> None:
    started = start_processes(arguments, world, **extra)
    try:
        # only against a deadlock: on a busy machine a run of seconds may take minutes
        outputs = [process.communicate(timeout=1200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]


def run_together(function: Callable[..., None], *args: Any) -> None:
    """Call ``function(*args)`` in two processes that are started once."""
    launch.run_processes(_as_one_of_several, function, args)


def _as_one_of_several(rank: int, world: int, function: Callable[..., None], args: Any) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
    before = dict(os.environ)
    os.environ.update({k: str(v) for k, v in names.items()}, ACCELERATE_USE_CPU="true")
    try:
        with warnings.catch_warnings():
            function(*args)
    finally:
        os.environ.clear()
        os.environ.update(before)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def run_here(options: dict[str, Any]) -> None:
    """Train ``tests.training.run_small`` in this process, which saves the start of another one."""
    from tests.training.run_small import main

    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        try:
            main(dict(options))
        finally:
            torch.set_num_threads(threads)


def run_small(folder: Path, options: dict[str, Any], world: int = 1) -> dict[str, Any]:
    """Train ``tests.training.run_small`` and return what it saved."""
    from tests.training.run_small import main

    save = folder / f"final-{world}.pt"
    options = {**options, "save": str(save)}
    if world == 1:
        run_here(options)
    else:
        run_together(main, options)
    return torch.load(save, weights_only=True)
