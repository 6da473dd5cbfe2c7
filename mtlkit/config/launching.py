"""Processes started by a launcher such as torchrun, read from the environment."""

import os
import sys
import warnings

from mtlkit.errors import UsageError


class LaunchError(UsageError):
    """A launcher started a command that starts its own processes; every process raises it."""


def launched_processes() -> int:
    """Return how many processes a launcher started; 1 without a launcher."""
    for variable in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        number = os.environ.get(variable, "")
        if number.isdigit():
            return max(1, int(number))
    return 1


def is_first_process() -> bool:
    """Return whether this is the process that prints messages and warnings."""
    distributed = sys.modules.get("torch.distributed")  # importing torch would take seconds
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    ranks = (os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    return next((rank for rank in ranks if rank is not None), "0") == "0"


def warn_first(message: str, stacklevel: int = 2) -> None:
    """Warn on the first of several processes only."""
    if is_first_process():
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


def refuse_launcher(command: str) -> None:
    """Raise a :class:`LaunchError` if torchrun or ``accelerate launch`` started this command."""
    started = launched_processes()
    if started == 1 and os.environ.get("LOCAL_RANK", "-1") == "-1":
        return
    raise LaunchError(
        f"{command} starts its own processes, but a launcher (torchrun) started it {started} times: "
        "run it directly, with --jobs for the number of parallel runs. To train one network on several "
        "GPUs, launch mtlkit train"
    )
