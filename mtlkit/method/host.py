"""The seam between torch and NumPy: solvers run on the host, at one synchronization per step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[Any]

_ONE_THREAD_ANYWAY = 16
"""Up to this many tasks BLAS takes one thread without being asked; the limit would cost 20 us."""


def on_host(function: Callable[..., Matrix], gram: Tensor, *tensors: Tensor, **options: float) -> Tensor:
    """Run ``function`` on float64 NumPy arrays, and return its result as a float64 tensor.

    All tensors are copied in one transfer. The solver runs on one thread: such small matrices gain
    nothing from several, which wait for each other where other processes, such as data loader workers,
    keep the cores busy. A solver would fail on a Gram matrix that is not finite; the result is then NaN,
    in the shape that the solver returns for an example.

    >>> on_host(np.diag, torch.tensor([[4.0, 1.0], [1.0, 2.0]]))
    tensor([4., 2.], dtype=torch.float64)
    """
    given = [gram, *tensors]
    numbers = torch.cat([tensor.detach().reshape(-1).double() for tensor in given]).cpu().numpy()
    arrays, start = [], 0
    for tensor in given:
        arrays.append(numbers[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()
    with _one_thread() if len(gram) > _ONE_THREAD_ANYWAY else contextlib.nullcontext():
        if math.isfinite(arrays[0].trace()):
            result = function(*arrays, **options)
        else:
            example = np.eye(len(gram)), *map(np.ones_like, arrays[1:])
            result = np.full(np.shape(function(*example, **options)), np.nan)
    # a copy: the solver may return what it was given, or a view that torch does not take
    return torch.from_numpy(np.array(result, dtype=np.float64)).to(gram.device)


def load_solvers() -> None:
    """Import SciPy, which is not imported with mtlkit because that would double the time.

    In the middle of the first step its many small objects would come to lie between the rows of
    ``wrt=parameters`` and keep their memory from being reused: 60 to 150 MiB with ten tasks, ResNet18.
    """
    import scipy.optimize  # noqa: F401


def _one_thread() -> contextlib.AbstractContextManager[Any]:
    """A context in which the BLAS of NumPy and SciPy takes one thread."""
    context: contextlib.AbstractContextManager[Any] = _blas().limit(limits=1)
    return context


@cache
def _blas() -> Any:
    """The controller of their threads; made once, because it searches all loaded libraries."""
    import scipy.linalg  # noqa: F401  the search finds its BLAS only if it is loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
