"""Features as nested lists, tuples and dicts of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Proxy

from mtlkit.errors import UsageError


def flatten_features(features: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Tensors of a nested list, tuple or dict, and the function that puts others in their place."""
    if isinstance(features, Tensor | Proxy):  # a proxy stands for a tensor while fuse traces a network
        return [features], lambda leaves: leaves[0]  # type: ignore[list-item]
    if features is None:
        return [], lambda leaves: None
    if isinstance(features, Mapping):
        children = [flatten_features(item) for item in features.values()]
    elif isinstance(features, tuple | list):
        children = [flatten_features(item) for item in features]
    else:
        raise UsageError(
            "features must be a tensor, or a nested list, tuple or dict of tensors, "
            f"not {type(features).__name__}"
        )

    def rebuild(values: Sequence[Tensor]) -> Any:
        items, start = [], 0
        for child, build in children:
            items.append(build(values[start : start + len(child)]))
            start += len(child)
        if isinstance(features, Mapping):
            kind = OrderedDict if isinstance(features, OrderedDict) else dict
            return kind(zip(features, items, strict=True))
        if hasattr(features, "_fields"):  # a named tuple
            return type(features)(*items)
        return tuple(items) if isinstance(features, tuple) else items

    return [leaf for child, _ in children for leaf in child], rebuild
