"""The law of data parallelism, checked with two processes that talk over gloo."""

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import backward
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from mtlkit.config.registry import methods
from mtlkit.errors import UsageError
from mtlkit.testing.cases import BATCH, MethodCase, require
from mtlkit.testing.small_network import INPUTS, SmallNetwork

STEPS = 10
States = list[dict[str, Tensor]]


def distributed(case: MethodCase) -> None:
    """Two processes with half a batch each end where one process with the whole batch does."""
    first, second = train_on_two_processes([case])
    for alone, one, other in zip(train_alone(case), first[0], second[0], strict=True):
        require_same_end(alone, one, other)


def require_same_end(
    alone: dict[str, Tensor], first: dict[str, Tensor], second: dict[str, Tensor]
) -> None:
    """Raise unless both processes have the same state, equal to that of one process up to rounding."""
    for name, expected in alone.items():
        require(torch.equal(first[name], second[name]), f"the processes differ in {name}")
        size = max(1.0, float(expected.double().abs().max()))
        difference = float((first[name].double() - expected.double()).abs().max())
        require(difference <= 1e-6 * size, f"two processes are {difference:.1e} from one in {name}")


def train_alone(case: MethodCase) -> States:
    """Return the states after training in this process: ``wrt=features``, then ``parameters``."""
    return [_train(net, net, 0, 1) for net in _networks(case)]


def train_on_two_processes(cases: Sequence[MethodCase]) -> list[list[States]]:
    """Return what :func:`train_alone` does, for each process and case."""
    # pickled by reference, so that the processes import the modules that register the methods
    classes = [
        methods.get(part.name)
        for case in cases
        if not isinstance(case.method, type)
        for part in methods.expand(case.method)
    ]
    return run_processes(_train_cases, list(cases), classes)


def _train_cases(rank: int, world: int, cases: Sequence[MethodCase], classes: Any) -> list[States]:
    return [
        [
            _train(net, DistributedDataParallel(net, find_unused_parameters=True), rank, world)
            for net in _networks(case)
        ]
        for case in cases
    ]


def _networks(case: MethodCase) -> list[SmallNetwork]:
    if not case.takes_wrt():
        return [case.network()]
    return [case.network(), case.network(case.create(wrt="parameters"))]


def _train(net: SmallNetwork, module: torch.nn.Module, rank: int, world: int) -> dict[str, Tensor]:
    tasks, share = len(net.heads), BATCH // world
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
    generator = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        x = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64)
        x = x.to(next(net.parameters()))
        labels = torch.randint(2, (BATCH, tasks), generator=generator)
        labels[:, 0] = 1
        labels[BATCH // 2 :, 1:2] = 0  # the second process never has a label of the second task
        if step % 4 == 3:
            labels[:, -1] = 0  # no process has labels of the last task
        if step == 5:
            labels[BATCH // 2 :] = 0  # the second process has no label at all
        mine = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        backward(module(x[mine], labels[mine]))
        optimizer.step()
    return {name: value.cpu().clone() for name, value in net.state_dict().items()}


def run_processes(function: Callable[..., Any], *args: Any, world: int = 2) -> list[Any]:
    """Run ``function(rank, world, *args)`` in ``world`` processes joined by gloo; return the results."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            given = (world, port, function, args, folder)
            spawn(_worker, given, nprocs=world)  # type: ignore[no-untyped-call,unused-ignore]
        except (AttributeError, TypeError) as error:  # what pickle raises
            raise UsageError(
                f"other processes cannot import the method or its options: {error}; define the class "
                "at the top level of a module"
            ) from error
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _worker(
    rank: int, world: int, port: int, function: Callable[..., Any], args: tuple[Any, ...], folder: str
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        torch.save(function(rank, world, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
