"""Create a method that fits the heads of a given model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mtlkit.config.registry import methods
from mtlkit.config.spec import Part, SpecLike
from mtlkit.method.create import create_method

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fitting_method(
    spec: SpecLike,
    heads: Mapping[str, nn.Module],
    feature_dim: int | None,
    options: Mapping[str, Any],
    shared: Any = None,
) -> Any:
    """Create the method of ``spec``; rotations get their size from the heads.

    Args:
        spec: config string.
        heads: heads by task; if their first layers read images, the channels are rotated.
        feature_dim: size of the rotated axis; default: the input size of the heads' first layers.
        options: options that replace those of the string.
        shared: shared parameters, for ``wrt=parameters``; None finds them in the graph.
    """
    parts = methods.override(methods.expand(spec), options, of=str(spec))
    if any(part.name == "rotate" for part in parts):
        found = {_input_of(head) for head in heads.values()}
        known = found.pop() if len(found) == 1 else None
        if known is not None:
            feature_dim = known[0] if feature_dim is None else feature_dim
            parts = [_by_channel(part) for part in parts] if known[1] else parts
    return create_method(list[Any](parts), tuple(heads), feature_dim=feature_dim, shared=shared)


def _input_of(head: nn.Module) -> tuple[int, bool] | None:
    """Return the input size of a head's first layer, and whether that is a number of channels."""
    pools = False
    for module in head.modules():
        if isinstance(module, _CONVOLUTIONS):
            return module.in_channels, True
        if isinstance(module, nn.Linear):
            return module.in_features, pools
        pools = pools or "Pool" in type(module).__name__
    return None


def _by_channel(part: Part) -> Part:
    return Part("rotate", {"dim": "channel", **part.options}) if part.name == "rotate" else part
