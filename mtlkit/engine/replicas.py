"""Detects processes that were launched together but train independently of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from mtlkit.config.launching import launched_processes, warn_first
from mtlkit.engine.graph import leaves_of
from mtlkit.engine.processes import Processes

_CHECKED = (10, 100)
"""Steps at which the processes are compared: late enough for their weights to have diverged."""
_MOST = 64
"""Largest number of weight matrices that are compared."""
_TOLERANCE = 1e-9
_ADVICE = "wrap the model and its method in DistributedDataParallel, or let Accelerate prepare them"


class LoneTraining:
    """Watches the steps of one method. It is not copied or saved with it."""

    def __init__(self) -> None:
        self._steps = 0
        self._backwards = 0

    def count_step(self) -> None:
        """Warn if a launcher started several processes and torch.distributed is not initialized."""
        self._steps += 1
        if self._steps != _CHECKED[0] or (dist.is_available() and dist.is_initialized()):
            return
        started = launched_processes()
        if started > 1:
            warn_first(
                f"{started} processes were started, but torch.distributed is not initialized: each "
                f"trains alone; call torch.distributed.init_process_group and {_ADVICE}",
                stacklevel=3,
            )

    def compare(self, node: Any, processes: Processes, owned: Sequence[Tensor]) -> None:
        """Warn if all weight matrices below the node of a backward differ between the processes.

        Every process must call this in the same backward passes. Equal weights are fine however they
        were made equal, and so are weights of which only some differ, such as those of experts.
        """
        self._backwards += 1
        if self._backwards not in _CHECKED:
            return
        own = {id(parameter) for parameter in owned}
        below = [p for p in leaves_of(node) if p.dim() > 1 and id(p) not in own]
        matrices = [p.detach() for p in below if type(p) in (Tensor, torch.nn.Parameter)][:_MOST]
        shapes = crc32(repr([tuple(matrix.shape) for matrix in matrices]).encode())
        message = torch.zeros(3, _MOST + 1, dtype=torch.float64)
        message[0, 0] = shapes
        for place, matrix in enumerate(matrices, start=1):
            wide = matrix.double()
            message[0, place], message[2, place] = wide.sum(), wide.abs().sum()
        message[1] = -message[0]
        device = matrices[0].device if matrices else processes.device
        message = message.to(device)
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=processes.group)
        largest, smallest, size = message[0], -message[1], message[2]
        differs = (largest - smallest > _TOLERANCE * size).tolist()
        if matrices and not differs[0] and all(differs[1 : len(matrices) + 1]):
            warn_first(
                f"all weights differ between the {processes.world} processes: nothing averages their "
                f"gradients, so each trains alone; {_ADVICE}, or set sync=False if they are meant to",
                stacklevel=2,
            )

    def __deepcopy__(self, memo: Any) -> LoneTraining:
        return LoneTraining()

    def __reduce__(self) -> Any:
        return LoneTraining, ()
