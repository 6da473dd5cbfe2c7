"""A backbone of two layers over all pixels, whose step takes milliseconds."""

from __future__ import annotations

from torch import nn

from mtlkit.architectures.backbones import register_backbone


@register_backbone("flat_mlp")
def flat_mlp(*, inputs: int, hidden: int = 256, features: int = 128) -> nn.Sequential:
    """Return two layers with BatchNorm over the flattened image."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
        *(nn.Linear(hidden, features), nn.BatchNorm1d(features), nn.ReLU()),
    )
