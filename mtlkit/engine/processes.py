"""The processes that share a step, and their reductions."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mtlkit.engine.compiled import define
from mtlkit.errors import UsageError


class Processes:
    """Processes whose batches together make one step; a single one by default.

    Args:
        world: how many there are.
        rank: which of them this is.
        chosen: their group; None stands for all processes.
    """

    def __init__(self, world: int = 1, rank: int = 0, chosen: Any = None) -> None:
        self.world, self.rank, self._chosen = world, rank, chosen
        self.alone = world == 1 and chosen is None

    @property
    def group(self) -> Any:
        """The group that reduces."""
        return _own_group() if self._chosen is None else self._chosen

    @property
    def device(self) -> torch.device:
        """A device that the group's back end reduces on."""
        if self.alone or "gloo" in str(dist.get_backend(self.group)):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over the processes, in place where that is not compiled."""
        if self.alone:
            return tensor
        if torch.compiler.is_compiling():
            name = "" if self._chosen is None else self._chosen.group_name
            summed: Tensor = _sum_operator(tensor, name)
            return summed
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over the processes, in place where that is not compiled."""
        return tensor if self.alone else self.sum(tensor) / self.world


ALONE = Processes()


def processes_of(chosen: Any = None) -> Processes:
    """The processes of the group ``chosen``, or all of them."""
    if not dist.is_available() or not dist.is_initialized():
        return ALONE
    world = dist.get_world_size(chosen)
    return Processes(world, dist.get_rank(chosen), chosen)


def _sum_by_name(tensor: Tensor, name: str) -> Tensor:
    c10d: Any = dist.distributed_c10d
    resolve = c10d._resolve_process_group  # noqa: SLF001  no public name
    summed = tensor.clone()
    dist.all_reduce(summed, group=resolve(name) if name else _own_group())
    return summed


_sum_operator = define(
    "sum_over_processes(Tensor tensor, str name) -> Tensor",
    _sum_by_name,
    lambda tensor, name: torch.empty_like(tensor),
)

# By the default group, in which they were made. A group that is destroyed with the interpreter while
# its threads still run ends the process with an error, so nothing else may keep one alive.
_groups: dict[Any, Any] = {}
atexit.register(_groups.clear)


def _own_group() -> Any:
    """A group of all processes for the reductions of methods.

    It is not DDP's: with labels missing on some ranks, DDP's buckets become ready in another order
    there, and reductions of one group must come in one order.
    """
    world = dist.group.WORLD
    if world not in _groups:
        _groups.clear()  # those of a default group that has been destroyed
        _groups[world] = dist.new_group(timeout=_timeout_of(world))
    return _groups[world]


def _timeout_of(group: Any) -> timedelta | None:
    """The timeout that ``init_process_group`` was given; None if it cannot be found out."""
    try:
        device = torch.device("cpu" if dist.get_backend(group) in ("gloo", "mpi") else "cuda")
        options = group._get_backend(device).options  # noqa: SLF001  there is no public name
        return timedelta(seconds=options._timeout.total_seconds())  # noqa: SLF001  nor here
    except (AttributeError, RuntimeError):
        return None


def inside_wrapper() -> Any:
    """The DistributedDataParallel module whose forward is running now, or None."""
    if not dist.is_available() or torch.compiler.is_compiling():
        return None
    return getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)


def wrapper_waits() -> tuple[bool, bool]:
    """Return whether the forward of a DDP module is running, and whether it waits for every parameter.

    Raises:
        UsageError: within ``DDP.join()``, where processes would wait for each other until the timeout.
    """
    wrapper = inside_wrapper()
    join = getattr(wrapper, "_join_config", None)
    if join is not None and join.enable:
        raise UsageError(
            "DDP.join() is not supported: a process that has run out of batches takes no part in the "
            "reductions of the method, and the others would wait for it; give every process the same "
            "number of batches (DistributedSampler, or drop_last=True) and leave join() out"
        )
    wrapped = wrapper is not None and not wrapper.static_graph
    return wrapped, wrapped and not wrapper.find_unused_parameters


def leave_without_gradient(parameters: Iterable[Tensor]) -> None:
    """Keep ``.grad`` None after this backward where it is None now.

    DDP fills in zeros where a backward brings no gradient, and an optimizer with momentum would move
    the parameters by them, which it does not do in one process.
    """
    without = [parameter for parameter in parameters if parameter.grad is None]
    if not (without and dist.is_available() and dist.is_initialized()):
        return

    def clear() -> None:
        for parameter in without:
            parameter.grad = None

    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001  there is no public name
    # DDP's own callback is queued later than this one, and a callback's callback later still
    engine.queue_callback(lambda: engine.queue_callback(clear))
