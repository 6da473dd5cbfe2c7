"""The seam between torch and NumPy: solvers run on the host, at one synchronisation per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Matrix", "on_host", "solve"]

Matrix = np.ndarray[Any, np.dtype[Any]]


def on_host(
    function: Callable[..., Sequence[Matrix]], gram: Tensor, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Call ``function(gram, *tensors)`` with float64 arrays and bring its arrays back.

    All tensors travel in one transfer, and so do all results. Where the Gram matrix is not finite a
    solver would fail; it is then given an example instead, and its results are replaced by NaN.
    """
    given = [gram, *tensors]
    numbers = torch.cat([tensor.detach().double().reshape(-1) for tensor in given]).cpu().numpy()
    arrays, start = [], 0
    for tensor in given:
        arrays.append(numbers[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()
    finite = math.isfinite(float(arrays[0].trace()))
    if not finite:
        arrays = [np.eye(len(arrays[0])), *map(np.ones_like, arrays[1:])]
    results = [np.asarray(result, dtype=np.float64) for result in function(*arrays)]
    flat = np.concatenate([result.reshape(-1) for result in results])
    back = torch.from_numpy(flat if finite else np.full_like(flat, np.nan)).to(gram.device)
    pieces = torch.split(back, [result.size for result in results])
    return tuple(piece.view(result.shape) for piece, result in zip(pieces, results, strict=True))


def solve(solver: Callable[..., Matrix], gram: Tensor, *numbers: float) -> Tensor:
    """Weights that ``solver(gram, *numbers)`` finds, as a float64 tensor."""
    (weights,) = on_host(lambda matrix: [solver(matrix, *numbers)], gram)
    return weights
