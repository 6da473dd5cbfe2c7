"""Accelerate's devices and trackers, label counts over processes, and signals to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mtlkit.config.launching import warn_first
from mtlkit.errors import ConfigError, SpecError, UsageError, unknown_name


def make_accelerator(
    mixed_precision: str, gradient_accumulation_steps: int, log_with: Sequence[str], output: Path | None
) -> Any:
    """Create an accelerator, even if an earlier one of this process had another precision."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, is_initialized

    if is_initialized() and AcceleratorState().mixed_precision != mixed_precision:
        # Accelerate's precision is global, and there is no public way to change it
        AcceleratorState._reset_state(reset_partial_state=False)  # noqa: SLF001
    check_trackers(log_with)
    return Accelerator(
        mixed_precision=mixed_precision,
        gradient_accumulation_steps=gradient_accumulation_steps,
        log_with=list(log_with) or None,
        project_dir=None if output is None else str(output),
    )


def choose_device(device: str) -> None:
    """Make Accelerate use a device in this process: auto, cpu, mps, cuda or cuda:N."""
    from accelerate.state import AcceleratorState, PartialState, is_initialized

    if device == "auto":
        return
    name, _, index = device.partition(":")
    if name not in ("cpu", "mps", "cuda") or (index and not (name == "cuda" and index.isdigit())):
        raise ConfigError(f"the device must be auto, cpu, mps, cuda or cuda:N, not {device!r}")
    if name == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
    else:
        found = torch.cuda.device_count() if name == "cuda" else torch.backends.mps.is_available()
        if int(found) <= int(index or 0):
            raise ConfigError(f"torch finds no device {device!r}; use cpu or auto")
        os.environ.pop("ACCELERATE_USE_CPU", None)
    if index:
        torch.cuda.set_device(int(index))
    if is_initialized() and PartialState().device.type != name:
        AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise for trackers that are unknown or not installed, which Accelerate would ignore."""
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
    accelerator: Any, settings: Mapping[str, Any], metrics: Mapping[str, float], step: int
) -> None:
    """Send settings and last metrics to the trackers and finish them."""
    if accelerator.trackers and accelerator.is_main_process:
        plain = {
            name: value if isinstance(value, bool | int | float) else str(value)
            for name, value in settings.items()
            if value is not None
        }
        for tracker in accelerator.trackers:
            tracker.store_init_configuration(plain)
        if metrics:
            accelerator.log(dict(metrics), step=step)
        for tracker in accelerator.trackers:
            tracker.finish()
    accelerator.trackers = []


def adapt_accelerator(accelerator: Any, mixed_precision: str, gradient_accumulation_steps: int) -> None:
    """Check an accelerator, and set what the Trainer relies on."""
    from accelerate.utils import DistributedDataParallelKwargs

    if mixed_precision not in ("no", accelerator.mixed_precision):
        raise SpecError(
            f"mixed_precision is {mixed_precision!r}, but that of the given accelerator is "
            f"{accelerator.mixed_precision!r}: set it there"
        )
    started = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if started > accelerator.num_processes:
        raise UsageError(
            f"{started} processes were started, but Accelerate sees {accelerator.num_processes}: each "
            "would train alone and overwrite the others' files; on CPU, set ACCELERATE_USE_CPU=true"
        )
    kind = accelerator.distributed_type.name
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true", "yes")
    if asked and not is_sharded(accelerator):
        warn_first(
            f"FSDP was requested, but Accelerate does not use it on {accelerator.device.type} ({kind}): "
            "every process has a copy of the whole network",
            stacklevel=3,
        )
    if kind.startswith("MULTI_") and accelerator.ddp_handler is None:
        # DDP must accept heads without a gradient: a process may have no labels for a task
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    if gradient_accumulation_steps != 1:
        accelerator.gradient_accumulation_steps = gradient_accumulation_steps


def is_sharded(accelerator: Any) -> bool:
    """Return whether FSDP shards the parameters."""
    return bool(accelerator.distributed_type.name == "FSDP")


class LabelCounts:
    """Sums the labels of a batch over the processes.

    The counts are exchanged on the host, without waiting for a device. ``stop`` is set if this process
    was asked to stop.
    """

    def __init__(self, tasks: Sequence[str], accelerator: Any, stop: threading.Event) -> None:
        self._unlabeled = list(tasks)
        self._tasks = tuple(tasks)
        self.processes = int(accelerator.num_processes)
        self._stop = stop
        self._stop_agreed = False
        self._group: Any = None
        if self.processes > 1 and accelerator.device.type != "cpu":
            timeout = getattr(accelerator.init_handler, "timeout", None)
            self._group = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def should_stop(self) -> bool:
        """Whether any process was asked to stop; the same on all processes."""
        return self._stop_agreed if self.processes > 1 else self._stop.is_set()

    def start(self) -> None:
        """Forget an earlier request to stop."""
        self._stop_agreed = False

    def add_up(
        self, own: Sequence[float], apart: bool
    ) -> tuple[Sequence[float], list[float] | None, bool]:
        """Return the numbers of labels on all processes, loss factors, and ``apart`` of all processes.

        With the factors, the mean of the losses over the processes is the mean over all labels; they are
        None for one process.

        Args:
            own: numbers of labels on this process.
            apart: whether this process can run one forward pass per task.
        """
        counts, factors = own, None
        if self.processes > 1:
            flags = [float(self._stop.is_set()), float(not apart)]
            message = torch.tensor([*own, *flags], dtype=torch.float64)
            dist.all_reduce(message, group=self._group)
            *counts, stops, together = message.tolist()
            self._stop_agreed, apart = stops > 0, together == 0
            pairs = zip(own, counts, strict=True)
            factors = [mine * self.processes / max(count, 1.0) for mine, count in pairs]
        if self._unlabeled:
            found = {name for name, count in zip(self._tasks, counts, strict=True) if count}
            self._unlabeled = [name for name in self._unlabeled if name not in found]
        return counts, factors, apart

    def describe_unlabeled(self, targets: Collection[str]) -> str:
        """Describe, once, the tasks without any label so far; ``targets`` has the names of targets."""
        names, self._unlabeled = self._unlabeled, []
        if not (names and targets):
            return ""
        return (
            f"no batch so far has a label of {' or '.join(map(repr, names))}, so nothing is learned "
            "for it: all its targets are missing (None, NaN or negative), or have another name; the "
            f"targets are named {', '.join(sorted(targets))}"
        )


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM, at the end of a step.

    Attributes:
        step: number of steps so far.
        checkpoint: path of the checkpoint; None for a run without an output folder.

    >>> print(Interrupted(120, Path("runs/x/checkpoints/step-000000120.pt")))
    stopped after step 120; saved as runs/x/checkpoints/step-000000120.pt
    """

    def __init__(self, step: int, checkpoint: Path | None) -> None:
        saved = f"saved as {checkpoint}" if checkpoint else "nothing was saved: no output folder"
        super().__init__(f"stopped after step {step}; {saved}")
        self.step = step
        self.checkpoint = checkpoint


@contextlib.contextmanager
def catch_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on the first Ctrl-C or SIGTERM; the second one has its usual effect."""
    stop.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)

    def request(number: int, frame: Any) -> None:
        stop.set()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        old[int(number)] = signal.signal(number, request)
    try:
        yield
    finally:
        restore()
