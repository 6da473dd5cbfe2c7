"""Warnings for processes that should train together, and train apart."""

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

_COMPARED_MATRICES = 64
_TOLERANCE = 1e-9
_ADVICE = "wrap the model and its method in DistributedDataParallel, or let Accelerate prepare them"


def warn_if_unsynced() -> None:
    """Warn if a launcher started several processes and torch.distributed is not initialized."""
    if dist.is_available() and dist.is_initialized():
        return
    started = launched_processes()
    if started > 1:
        warn_first(
            f"{started} processes were started, but torch.distributed is not initialized: each trains "
            f"alone; call torch.distributed.init_process_group and {_ADVICE}",
            stacklevel=5,
        )


def compare(node: Any, processes: Processes, owned: Sequence[Tensor]) -> None:
    """Warn if all weight matrices below the node of a backward differ between the processes.

    Every process must call this in the same backward passes. Equal weights are fine however they were
    made equal, and so are weights of which only some differ, such as those of experts.
    """
    own = {id(parameter) for parameter in owned}
    below = [p for p in leaves_of(node) if p.dim() > 1 and id(p) not in own]
    matrices = [p.detach() for p in below if _is_readable(p)][:_COMPARED_MATRICES]
    message = torch.zeros(3, _COMPARED_MATRICES + 1, dtype=torch.float64)
    message[0, 0] = crc32(repr([tuple(matrix.shape) for matrix in matrices]).encode())
    for place, matrix in enumerate(matrices, start=1):
        wide = matrix.abs().double() if matrix.is_complex() else matrix.double()
        message[0, place], message[2, place] = wide.sum(), wide.abs().sum()
    message[1] = -message[0]
    message = message.to(matrices[0].device if matrices else processes.device)
    dist.all_reduce(message, op=dist.ReduceOp.MAX, group=processes.group)
    largest, smallest, size = message[0], -message[1], message[2]
    differs = (largest - smallest > _TOLERANCE * size).tolist()
    if matrices and not differs[0] and all(differs[1 : len(matrices) + 1]):
        warn_first(
            f"all weights differ between the {processes.world} processes: nothing averages their "
            f"gradients, so each trains alone; {_ADVICE}, or set sync=False if they are meant to",
            stacklevel=2,
        )


def _is_readable(parameter: Tensor) -> bool:
    """Return whether the weights can be read: FSDP frees the storage of gathered ones between uses."""
    if type(parameter) not in (Tensor, torch.nn.Parameter):
        return False
    return parameter.untyped_storage().nbytes() >= parameter.numel() * parameter.element_size()
