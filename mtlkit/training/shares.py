"""Exchanged between processes at every step: numbers of labels, and requests to stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Shares:
    """Adds up the labels of a batch over the processes.

    The numbers are known on the host and exchanged there, without waiting for a device.

    Args:
        accelerator: whose processes share every batch.
        stop: set where this process was asked to stop.
    """

    def __init__(self, accelerator: Any, stop: threading.Event) -> None:
        self.processes = int(accelerator.num_processes)
        self._stop = stop
        self._stop_agreed = False
        self._group: Any = None
        if self.processes > 1 and accelerator.device.type != "cpu":
            timeout = getattr(accelerator.init_handler, "timeout", None)
            self._group = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def should_stop(self) -> bool:
        """Whether some process was asked to stop; all give the same answer."""
        return self._stop_agreed if self.processes > 1 else self._stop.is_set()

    def start(self) -> None:
        """Forget an earlier request to stop."""
        self._stop_agreed = False

    def add_up(self, own: Sequence[float]) -> tuple[Sequence[float], list[float] | None]:
        """Numbers of labels on all processes, and factors for the losses of this process.

        With these factors, the mean of the losses over the processes is the mean over all labels. One
        process has no factors.
        """
        if self.processes == 1:
            return own, None
        message = torch.tensor([*own, float(self._stop.is_set())], dtype=torch.float64)
        dist.all_reduce(message, group=self._group)
        *counts, stops = message.tolist()
        self._stop_agreed = stops > 0
        pairs = zip(own, counts, strict=True)
        return counts, [mine * self.processes / max(count, 1.0) for mine, count in pairs]
