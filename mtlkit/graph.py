"""Walks through autograd's graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_backward", "leaves_below", "nodes_below"]


def nodes_below(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Autograd nodes that ``tensors`` were computed by, each once."""
    stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def leaves_below(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaf tensors that require a gradient and that ``tensors`` were computed from."""
    tensors = list(tensors)
    found = {id(t): t for t in tensors if t.grad_fn is None and t.requires_grad}
    for node in nodes_below(tensors):
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
    return list(found.values())


def in_backward() -> bool:
    """Whether autograd is running: a checkpoint is computing its forward again."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001  there is no public name
