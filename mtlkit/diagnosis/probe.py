"""The plain sum as a method that records its features and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.diagnosis.summary import Wrt
from mtlkit.engine.features import flatten_features
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.method import Method
from mtlkit.method.state import State

_MOST_ROWS = 128
"""Samples of a batch that are used for the similarity of two tasks."""


class _Ones(GradientAggregator):
    """Weighs every task by one. Unlike ``sum``, it also works at the losses, without a fork."""

    name = "sum"

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Return ones."""
        return torch.ones_like(gram[0]), state


class Probe(Method):
    """The plain sum instead of a model's method; at the parameters, with statistics of every layer.

    Attributes:
        forked: whether the model passed features to it.
    """

    def __init__(self, tasks: tuple[str, ...], wrt: Wrt, model: nn.Module) -> None:
        at_parameters = wrt == "parameters"
        super().__init__([_Ones(tasks, wrt=wrt, groups="layer" if at_parameters else "all")])
        self.forked = False
        self.start_watching()
        self.start_step()
        _install(self, model)
        if at_parameters:
            self.set_shared(model)

    def forward(self, features: Any) -> list[Any]:
        """Return K features like any method, and record the gradient of each."""
        self.forked = True
        views = super().forward(features)
        if self.training:
            self._watch([f.detach() for f in flatten_features(features)[0] if f.is_floating_point()])
            for task, view in enumerate(views):
                for place, tensor in enumerate(flatten_features(view)[0]):
                    if tensor.requires_grad:
                        tensor.register_hook(self._keep(task, place))  # type: ignore[no-untyped-call]
        return views

    def start_step(self) -> None:
        """Discard the gradients and statistics of the last step."""
        self._gradients: dict[tuple[int, int], Tensor] = {}
        self._noted.clear()

    def similarity(self) -> Tensor:
        """Return the (K, K) similarity of the tasks' gradients over the samples; NaN if unknown.

        It is the centered kernel alignment of the matrices of inner products between samples, without
        their diagonals: 1 if the gradients of two tasks are equal up to a rotation, 0 on average for
        unrelated tasks. Unlike the cosine, it does not depend on the initialization of the heads; it
        does not depend on the loss scales either. Only samples labeled for both tasks count.
        """
        count = len(self.tasks)
        nothing = torch.full((count, count), torch.nan)
        if len({rows.shape[0] for rows in self._gradients.values()}) != 1:
            return nothing
        size = next(iter(self._gradients.values())).shape[0]
        kernels = torch.zeros(count, size, size)  # (K, N, N) inner products between samples
        labeled = torch.zeros(count, size)
        for (task, _), rows in self._gradients.items():
            known = rows.abs().amax(dim=1, keepdim=True) > 0
            rows = torch.where(known, rows - rows.sum(0) / known.sum().clamp(min=1), 0.0)
            kernels[task] += rows @ rows.T
            labeled[task] = torch.maximum(labeled[task], known[:, 0].float())
        kernels.diagonal(dim1=1, dim2=2).zero_()
        flat = kernels.flatten(1)
        both = (labeled[:, :, None] * labeled[:, None, :]).flatten(1)
        scale = flat.square() @ both.T  # (K, K): of task i, over the samples of task j
        return torch.nan_to_num(
            flat @ flat.T / (scale * scale.T).sqrt(), posinf=torch.nan, nan=torch.nan
        )

    def start_watching(self) -> None:
        """Discard the ranges of the features seen so far."""
        self._lowest: list[Tensor] = []
        self._highest: list[Tensor] = []

    def constant_features(self) -> tuple[int, int]:
        """Return how many features had the same value in all samples, and how many there are."""
        pairs = list(zip(self._lowest, self._highest, strict=True))
        return sum(int((low == high).sum()) for low, high in pairs), sum(low.numel() for low, _ in pairs)

    def _keep(self, task: int, place: int) -> Any:
        def hook(gradient: Tensor | None) -> None:
            if gradient is None:  # a task without labels in this batch
                return
            rows = _by_feature(gradient.detach())
            chosen = torch.linspace(0, len(rows) - 1, min(_MOST_ROWS, len(rows))).long()
            kept = rows[chosen.to(rows.device)].float().cpu()
            # normalized, so that squares neither overflow nor underflow
            self._gradients[task, place] = kept / kept.norm().clamp(min=torch.finfo(kept.dtype).tiny)

        return hook

    def _watch(self, features: list[Tensor]) -> None:
        lowest = [_by_feature(feature).amin(dim=0) for feature in features]
        highest = [_by_feature(feature).amax(dim=0) for feature in features]
        if len(self._lowest) == len(lowest):
            lowest = [torch.minimum(a, b) for a, b in zip(self._lowest, lowest, strict=True)]
            highest = [torch.maximum(a, b) for a, b in zip(self._highest, highest, strict=True)]
        self._lowest, self._highest = lowest, highest


def find_method(model: nn.Module) -> Method | None:
    """Return the model's method, or None."""
    own = getattr(model, "method", None)
    if isinstance(own, Method):
        return own
    return next((module for module in model.modules() if isinstance(module, Method)), None)


def _install(probe: Method, model: nn.Module) -> None:
    """Replace all methods of the same tasks in ``model`` by the probe, and set ``model.method``."""
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
    """Reshape to (N, d); maps (B, d, H, W) have their features second, all others last."""
    if feature.dim() > 3:
        feature = feature.movedim(1, -1)
    return feature.reshape(-1, feature.shape[-1] if feature.dim() > 1 else 1)
