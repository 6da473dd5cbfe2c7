"""The plain sum as a method that watches the features which it forks."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.engine.features import flatten_features
from mtlkit.method.aggregator import GradientAggregator


class Probe(GradientAggregator):
    """Every weight is one. Unlike ``sum`` it can also stand at the losses of a model without a fork.

    Attributes:
        forked: whether the model gave it features.
        lowest: smallest value of every feature since :meth:`start_watching`, one tensor for each that is
            forked; ``highest`` likewise.
    """

    name = "sum"
    reads_gram = False

    def __init__(self, tasks: tuple[str, ...], wrt: Literal["features", "parameters"]) -> None:
        super().__init__(tasks, wrt=wrt)
        self.forked = False
        self.start_watching()

    def weights(self, gram: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(gram[0])

    def forward(self, features: Any) -> list[Any]:
        """K features, as any method gives them."""
        self.forked = True
        if self.training:
            self._watch([f.detach() for f in flatten_features(features)[0] if f.is_floating_point()])
        return super().forward(features)

    def start_watching(self) -> None:
        """Forget the features seen so far."""
        self.lowest: list[Tensor] = []
        self.highest: list[Tensor] = []

    def constant_features(self) -> tuple[int, int]:
        """How many features had one and the same value in all samples, and how many there are."""
        pairs = list(zip(self.lowest, self.highest, strict=True))
        return sum(int((low == high).sum()) for low, high in pairs), sum(low.numel() for low, _ in pairs)

    def _watch(self, features: list[Tensor]) -> None:
        lowest = [_by_feature(feature).amin(dim=0) for feature in features]
        highest = [_by_feature(feature).amax(dim=0) for feature in features]
        if len(self.lowest) == len(lowest):
            lowest = [torch.minimum(a, b) for a, b in zip(self.lowest, lowest, strict=True)]
            highest = [torch.maximum(a, b) for a, b in zip(self.highest, highest, strict=True)]
        self.lowest, self.highest = lowest, highest


def find_method(model: nn.Module) -> GradientAggregator | None:
    """The model's method, or None."""
    own = getattr(model, "method", None)
    if isinstance(own, Method):
        return own
    return next((module for module in model.modules() if isinstance(module, Method)), None)


def install(probe: Probe, model: nn.Module) -> None:
    """Put the probe wherever ``model`` has a method of the same tasks, and into ``model.method``."""
    pending = [model]
    while pending:
        module = pending.pop()
        for name, child in module.named_children():
            if isinstance(child, Method):
                if child.tasks == probe.tasks:
                    setattr(module, name, probe)
            else:
                pending.append(child)
    model.method = probe


def _by_feature(feature: Tensor) -> Tensor:
    """(N, d): maps (B, d, H, W) have their channels second, everything else has features last."""
    if feature.dim() > 3:
        feature = feature.movedim(1, -1)
    return feature.reshape(-1, feature.shape[-1] if feature.dim() > 1 else 1)
