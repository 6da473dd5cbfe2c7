"""Accelerate, as the Trainer uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mtlkit.config.launching import warn_first
from mtlkit.errors import SpecError, UsageError, unknown_name


def make_accelerator(
    precision: str, accumulate: int, trackers: Sequence[str], output: Path | None
) -> Any:
    """An accelerator of this precision, also where an earlier one of this process had another."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, is_initialized

    if is_initialized() and AcceleratorState().mixed_precision != precision:
        # the precision is process-wide there, and Accelerate has no public way to change it
        AcceleratorState._reset_state(reset_partial_state=False)  # noqa: SLF001
    check_trackers(trackers)
    return Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        log_with=list(trackers) or None,
        project_dir=None if output is None else str(output),
    )


def check_trackers(trackers: Sequence[str]) -> None:
    """Refuse trackers that Accelerate does not know, or would leave out without a word."""
    from accelerate.tracking import get_available_trackers
    from accelerate.utils import LoggerType

    known = [str(kind.value) for kind in LoggerType]
    installed = {"all", *map(str, get_available_trackers())} if trackers else set()
    for tracker in trackers:
        if tracker not in known:
            raise unknown_name("tracker", str(tracker), known)
        if tracker not in installed:
            raise SpecError(
                f"tracker {tracker!r} is not installed; install it with: pip install {tracker}"
            )


def end_trackers(
    accelerator: Any, settings: Mapping[str, Any], figures: Mapping[str, float], step: int
) -> None:
    """Add settings and last figures to the trackers and end them, so that the next run has its own."""
    if accelerator.trackers and accelerator.is_main_process:
        plain = {
            name: value if isinstance(value, bool | int | float) else str(value)
            for name, value in settings.items()
            if value is not None
        }
        for tracker in accelerator.trackers:
            tracker.store_init_configuration(plain)
        if figures:
            accelerator.log(dict(figures), step=step)
        for tracker in accelerator.trackers:
            tracker.finish()
    accelerator.trackers = []


def adapt_accelerator(accelerator: Any, accumulate: int) -> None:
    """Check an accelerator, anybody's, and set what the Trainer relies on."""
    _check_processes(accelerator)
    _find_unused_parameters(accelerator)
    if accumulate != 1:
        accelerator.gradient_accumulation_steps = accumulate


def _check_processes(accelerator: Any) -> None:
    """Refuse processes that Accelerate did not join, and warn where it ignores FSDP.

    Raises:
        UsageError: where several processes were started and each believes that it is alone.
    """
    started = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if started > accelerator.num_processes:
        raise UsageError(
            f"{started} processes were started, but Accelerate sees {accelerator.num_processes}: each "
            "would train alone and write over the others' files; on CPU, set ACCELERATE_USE_CPU=true"
        )
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true", "yes")
    if asked and not is_sharded(accelerator):
        warn_first(
            f"FSDP was asked for, but Accelerate leaves it out on {accelerator.device.type} "
            f"({accelerator.distributed_type.name}): every process holds the whole network",
            stacklevel=4,
        )


def _find_unused_parameters(accelerator: Any) -> None:
    """Let DDP accept heads without a gradient, since a process may have no labels for a task."""
    from accelerate.utils import DistributedDataParallelKwargs

    if accelerator.distributed_type.name.startswith("MULTI_") and accelerator.ddp_handler is None:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)


def is_sharded(accelerator: Any) -> bool:
    """Whether FSDP shards the parameters."""
    return bool(accelerator.distributed_type.name == "FSDP")


def gather(thing: Any, accelerator: Any) -> list[Any]:
    """The objects of all processes, in the order of their ranks."""
    if accelerator.num_processes == 1:
        return [thing]
    gathered: list[Any] = [None] * accelerator.num_processes
    dist.all_gather_object(gathered, thing)
    return gathered


def broadcast(thing: Any, accelerator: Any) -> Any:
    """The object of the first process."""
    if accelerator.num_processes == 1:
        return thing
    holder = [thing]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]
