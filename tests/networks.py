"""A small network with K heads, made from a config string."""

from __future__ import annotations

import mtlkit
from mtlkit.testing.small_network import INPUTS, WIDTH, SmallNetwork, train

__all__ = ["SmallNet", "train"]


class SmallNet(SmallNetwork):
    """The network that the laws are checked with; the forward returns the total loss."""

    def __init__(self, spec: str, tasks: int = 3, width: int = WIDTH, inputs: int = INPUTS, **options):
        method = mtlkit.create_method(spec, tasks, feature_dim=width, **options)
        super().__init__(method, inputs=inputs, width=width)
