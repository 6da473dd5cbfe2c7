"""Custom operators: what compilers must not look into.

``torch.compile`` traces the node of a method, with the Gram matrix and the weighted sum in it. What lies
between the two, the decision on K x K numbers with its state, its solvers and its exchange between
processes, is one operator that runs as ordinary Python. So are random draws, whose 64-bit products
Inductor folds wrongly, and reductions over processes. Nothing here is used outside of a compiled graph.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor

TRACEABLE = torch.__version__ >= "2.12"  # compares versions, not strings
"""Whether compilers can trace a fork; older versions of PyTorch run it as ordinary Python."""

_library: Any = torch.library.Library("mtlkit", "DEF")  # type: ignore[no-untyped-call]
_unsafe: Any = getattr(torch.Tag, "cudagraph_unsafe", None)
_tags = (
    () if _unsafe is None else (_unsafe,)
)  # state changes in Python, which a CUDA graph would not replay
_functions: dict[int, tuple[weakref.ref[Any], Callable[..., Tensor]]] = {}
_handles = itertools.count()
_TAG = "+mtlkit.several_backward_passes"


def expose(function: Callable[..., Tensor]) -> int:
    """Make a bound method callable by number, as long as its object lives."""
    handle, method, known = next(_handles), cast(MethodType, function), _functions
    # not a WeakMethod, whose callback fails while the interpreter exits
    owner = weakref.ref(method.__self__, lambda _: known.pop(handle, None))
    _functions[handle] = owner, method.__func__
    return handle


def call(handle: int, size: int, *tensors: Tensor) -> Tensor:
    """The (size,) result of an exposed function of tensors, as one operator of the graph."""
    result: Tensor = torch.ops.mtlkit.call(list(tensors), handle, size)
    return result


def allow_several_backward_passes() -> None:
    """Let compiled graphs have one backward pass per task; what was compiled before is compiled again.

    Else Inductor reuses the memory of saved tensors in the first one. Its cache on disk does not ask
    whether it may, so the keys get a tag.
    """
    import torch._functorch.config as settings  # not at the top: few methods need it

    caches: Any = getattr(torch.compiler, "config", None)
    if _TAG not in getattr(caches, "cache_key_tag", _TAG):
        caches.cache_key_tag += _TAG
    if settings.donated_buffer:
        settings.donated_buffer = False
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()


def define(schema: str, run: Callable[..., Tensor], shape: Callable[..., Tensor]) -> Any:
    """Define an operator by its schema, what it does, and what shape its result has."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=_tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mtlkit::{name}", shape, lib=_library)
    return getattr(torch.ops.mtlkit, name)


def _call(tensors: list[Tensor], handle: int, size: int) -> Tensor:
    owner, function = _functions[handle]
    with torch.no_grad():
        result: Tensor = function(owner(), *tensors)
    return result


define(
    "call(Tensor[] tensors, int handle, int size) -> Tensor",
    _call,
    lambda tensors, handle, size: tensors[0].new_empty(size),
)
