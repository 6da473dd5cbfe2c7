"""Kinds of shared features: vectors, tokens, maps, or several of these."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.engine.features import flatten_features
from mtlkit.errors import SpecError

Kind = Literal["vector", "tokens", "map"]

# kind and feature axis by the number of axes
_AXES: dict[int, tuple[Kind, int]] = {2: ("vector", 1), 3: ("tokens", 2), 4: ("map", 1)}
# modules that do not change the size of the feature axis
_KEEPS_SIZE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardswish,
    nn.Dropout,
    nn.Dropout2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Identity,
)


@dataclass(frozen=True)
class Features:
    """Kind and size of shared features; of a list, those of its last tensor."""

    kind: Kind
    """(B, d) ``vector``, (B, T, d) ``tokens`` or (B, d, H, W) ``map``."""
    dim: int
    """Size of the feature axis."""
    channels: tuple[int, ...] = ()
    """Size of the feature axis of every tensor, if there are several."""
    shape: tuple[int, ...] | None = None
    """Shape of one sample, if known."""

    @property
    def flat_size(self) -> int | None:
        """Number of values per sample, if known."""
        return None if self.shape is None else math.prod(self.shape)


def last_leaf(features: Any) -> Tensor:
    """Return the last tensor of a nested list, tuple or dict: the deepest level of a pyramid."""
    while isinstance(features, Mapping | list | tuple):  # a proxy of torch.fx is no tensor
        items = features.values() if isinstance(features, Mapping) else features
        features = [item for item in items if item is not None][-1]
    leaf: Tensor = features
    return leaf


def describe(output: Any) -> Features:
    """Return the kind and size of given features."""
    leaves, _ = flatten_features(output)
    if not leaves:
        raise SpecError("the backbone returns no tensor")
    kind, dim = _kind_of(leaves[-1])
    channels = () if isinstance(output, Tensor) else tuple(_kind_of(leaf)[1] for leaf in leaves)
    return Features(kind, dim, channels, tuple(leaves[-1].shape[1:]))


def _kind_of(leaf: Tensor) -> tuple[Kind, int]:
    if leaf.dim() not in _AXES:
        raise SpecError(
            f"the backbone returns a tensor of shape {tuple(leaf.shape)}; expected features (B, d), "
            "tokens (B, T, d) or maps (B, d, H, W)"
        )
    kind, axis = _AXES[leaf.dim()]
    return kind, leaf.shape[axis]


@torch.no_grad()
def measure_features(module: nn.Module, input_size: int | Sequence[int]) -> Features:
    """Find the features of ``module`` by a forward pass on inputs of this size (without the batch).

    Raises:
        SpecError: if the module does not accept such inputs.
    """
    size = (input_size,) if isinstance(input_size, int) else tuple(input_size)
    parameter = next(module.parameters(), None)
    like: dict[str, Any] = {}
    if parameter is not None:
        like = {"device": parameter.device, "dtype": parameter.dtype}
    modes = {child: child.training for child in module.modules()}
    try:
        module.eval()
        with torch.random.fork_rng(devices=[]):
            output = module(torch.zeros(2, *size, **like))
    except (RuntimeError, AssertionError) as error:  # the latter from timm
        raise SpecError(f"inputs of size {size} do not fit the network: {error}") from error
    finally:
        for child, mode in modes.items():
            child.training = mode
    return describe(output)


def declared_features(module: nn.Module) -> Features | None:
    """Return the features that a module declares or its last layer implies; None if unknown."""
    for attribute in ("num_features", "feature_dim"):
        value = getattr(module, attribute, None)
        if isinstance(value, int) and not isinstance(module, _KEEPS_SIZE):
            return Features("vector", value)
    return _from_last_layer(module)


def _from_last_layer(module: nn.Module) -> Features | None:
    if isinstance(module, nn.Linear):
        return Features("vector", module.out_features)
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        return Features("map", module.out_channels)
    if not isinstance(module, nn.Sequential):
        return None
    for layer in reversed(module):
        found = _from_last_layer(layer)
        if found is not None:
            return found
        if isinstance(layer, nn.Unflatten | nn.Flatten) or not isinstance(layer, _KEEPS_SIZE):
            return None
    return None
