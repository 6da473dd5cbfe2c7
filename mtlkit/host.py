"""Small tensors whose numbers are at hand: NumPy works on them in a third of torch's time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["Matrix", "all_finite", "as_array", "as_tensor", "cast", "is_finite", "ones", "readable"]

Matrix = np.ndarray
_YES, _NO = torch.tensor(True), torch.tensor(False)


def readable(tensor: Tensor) -> bool:
    """Whether values may decide a branch: not in a traced graph, and not where that waits for a GPU."""
    return not torch.compiler.is_compiling() and tensor.is_cpu


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor.to(dtype)``; to ask first costs a small tensor a tenth of the call that does nothing."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def as_array(tensor: Tensor) -> Matrix:
    """The numbers in float64, on the host."""
    array: Matrix = _on_host(tensor).astype(np.float64, copy=False)
    return array


def as_tensor(array: Matrix, like: Tensor) -> Tensor:
    """The numbers with the type and device of ``like``."""
    if like.dtype == torch.float32:  # NumPy's cast takes half the time of torch's
        array = array.astype(np.float32)
    tensor = torch.from_numpy(array)
    return cast(tensor, like.dtype) if like.is_cpu else tensor.to(like)


def ones(gram: Tensor) -> Tensor:
    """(P,) ones for a (P, P) matrix."""
    if readable(gram) and gram.dtype == torch.float32:
        return torch.from_numpy(np.ones(gram.shape[0], np.float32))
    return gram.new_ones(gram.shape[0])


def is_finite(array: Matrix) -> bool:
    """Whether all numbers are."""
    # a finite sum of squares says so in half the time; one that is not may be too large
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def all_finite(tensor: Tensor) -> Tensor:
    """``torch.isfinite(tensor).all()``, by NumPy where the numbers are at hand."""
    if not readable(tensor):
        return torch.isfinite(tensor).all()
    return _YES if is_finite(_on_host(tensor)) else _NO


def _on_host(tensor: Tensor) -> Matrix:
    host = tensor.detach() if tensor.requires_grad else tensor
    host = host if host.is_cpu else host.cpu()
    array: Matrix = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    return array
