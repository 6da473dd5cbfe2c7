"""Run functions in two processes that are started once: a start takes seconds of importing torch."""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mtlkit.testing import processes

__all__ = ["run_processes"]

WORLD = 2
_workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []


def run_processes(function: Callable[..., Any], *args: Any, world: int = WORLD) -> list[Any]:
    """Run ``function(rank, world, *args)`` in processes joined by gloo; return the results.

    Each call has a new process group. Other numbers of processes than two are started for the call.
    """
    if world != WORLD:
        return processes.run_processes(function, *args, world=world)
    if not _workers:
        _start()
    with tempfile.TemporaryDirectory() as folder:
        for _, pipe in _workers:
            pipe.send((function, args, folder))
        running = {pipe: rank for rank, (_, pipe) in enumerate(_workers)}
        while running:
            for pipe in wait(list(running)):
                rank = running.pop(pipe)
                try:
                    error = pipe.recv()
                except EOFError:
                    error = "it crashed"
                if error:  # the other process may wait for this one
                    _stop()
                    raise RuntimeError(f"process {rank}: {error}")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _start() -> None:
    context = multiprocessing.get_context("spawn")
    for rank in range(WORLD):
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(rank, theirs))
        process.start()
        theirs.close()
        _workers.append((process, mine))


@atexit.register
def _stop() -> None:
    for process, _ in _workers:
        process.kill()
        process.join()
    _workers.clear()


def _serve(rank: int, pipe: Connection) -> None:
    """Run what comes through the pipe until it is closed."""
    torch.set_num_threads(1)
    while True:
        try:
            function, args, folder = pipe.recv()
        except EOFError:
            return
        error = ""
        try:
            torch.manual_seed(0)
            dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD)
            torch.save(function(rank, WORLD, *args), Path(folder) / f"{rank}.pt")
        except BaseException:
            error = traceback.format_exc()
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(error)
