"""Run a function in N processes joined by gloo."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _worker(rank: int, world: int, port: int, function: Callable[..., Any], args: tuple, folder: str):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        torch.save(function(rank, world, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def run_processes(function: Callable[..., Any], *args: Any, world: int = 2) -> list[Any]:
    """What ``function(rank, world, *args)`` returned on every rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, (world, port, function, args, folder), nprocs=world, join=True)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]
