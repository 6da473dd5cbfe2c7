"""Searches in autograd's graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor


def nodes_below(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Autograd nodes that ``tensors`` were computed by, each once."""
    return _nodes([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])


def _nodes(stack: list[Any]) -> Iterator[Any]:
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def leaves_below(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaf tensors that require a gradient and that ``tensors`` were computed from.

    They come in the order of their first use, whatever the search starts from: some methods remember
    values per coordinate, and the next step may lack a task.
    """
    tensors = list(tensors)
    found = {id(t): t for t in tensors if t.grad_fn is None and t.requires_grad}
    return list((found | _leaves(nodes_below(tensors))).values())


def leaves_of(node: Any) -> list[Tensor]:
    """Leaf tensors below a node, in the order of their first use."""
    return list(_leaves(_nodes([node])).values())


def _leaves(nodes: Iterable[Any]) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for node in sorted(nodes, key=methodcaller("_sequence_nr")):
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                found[id(variable)] = variable
    return found


def retains_graph() -> bool:
    """Return whether the running backward was called with ``retain_graph=True``."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())  # noqa: SLF001  no public name


def visits(node: Any) -> bool:
    """Return whether ``node``, which is no leaf, belongs to the running backward."""
    return bool(torch._C._will_engine_execute_node(node))  # noqa: SLF001  as above


def needed_again(tensors: Sequence[Tensor]) -> list[bool]:
    """Return whether a backward pass from each of the tensors, in this order, must retain its graph.

    It must if the graph has a node in common with that of a following tensor, or with the running
    backward.
    """
    needed = [retains_graph()] * len(tensors)
    last_pass: dict[Any, int] = {}
    for index, tensor in reversed(list(enumerate(tensors))):
        stack = [tensor.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or not node.next_functions:  # a leaf has nothing to free
                continue
            if node not in last_pass and not visits(node):
                last_pass[node] = index
                stack.extend(following for following, _ in node.next_functions)
            elif last_pass.get(node) != index:
                needed[index] = True
    return needed
