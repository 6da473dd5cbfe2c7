"""Any aggregator of TorchJD as a method: ``torchjd(name=UPGrad)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import MissingExtraError, SpecError, unknown_name
from mtlkit.junction import Step
from mtlkit.registry import option_defaults, register_method
from mtlkit.spec import Part
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["TorchJD"]


@register_method("torchjd")
class TorchJD(GradientAggregator):
    """Merge by an aggregator of the package torchjd, where that is installed.

    The aggregator sees the Jacobian whose rows are the gradients of the tasks present; with several
    processes, a feature's row is the local share of it, so that aggregators which are not a weighted
    sum by the Gram matrix differ there from one process. Aggregators with a Gram-based weighting are
    given the Gram matrix alone: they cost no copy of the gradients, and are exact on several processes.

    What an aggregator remembers between steps is its own: it is not saved with the method.

    Args:
        name: a class of ``torchjd.aggregation``, such as ``UPGrad``; some need more packages, which the
            error names.
        options: arguments of that class, as a mapping.
    """

    paper = "Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232, 2024"
    year = 2024
    traceable = False
    exact_if = "for aggregators of the Gram matrix"

    def __init__(
        self,
        tasks: Tasks,
        *,
        name: str = "AlignedMTL",
        options: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        # `name` is the method's own name in the registry
        self.aggregator_name = name
        self.options = options
        self.aggregator = _make_aggregator(name, dict(options or {}))
        self._gram_weighting = getattr(self.aggregator, "gramian_weighting", None)
        self._merges_whole = self._gram_weighting is None

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The weights that TorchJD gives for the Gram matrix."""
        if self._gram_weighting is None:
            return super().weights(gram)
        if not torch.isfinite(gram).all():  # solvers raise there; the step is to be skipped instead
            return torch.full_like(gram[0], torch.nan)
        weights: Tensor = self._gram_weighting(gram).to(gram.dtype)
        if step is not None and step.group is not None:
            # random aggregators draw from each process's own generator: the first one decides
            weights = step.all_reduce(weights if step.rank == 0 else torch.zeros_like(weights))
        return weights

    def merge(self, grads: Tensor, step: Step | None = None) -> Tensor:
        """What TorchJD makes of the whole gradients."""
        if not torch.isfinite(grads).all():
            return torch.full_like(grads[0], torch.nan)
        merged: Tensor = self.aggregator(grads)
        return merged

    def _own_spec(self) -> Part:
        given: dict[str, Any] = {"name": self.aggregator_name, "options": self.options}
        defaults = option_defaults(type(self))
        given |= {"wrt": self.wrt, "sync": self.sync}
        return Part(self.name, {k: v for k, v in given.items() if v != defaults[k]})


def _make_aggregator(name: str, options: dict[str, Any]) -> Any:
    try:
        from torchjd import aggregation
    except ImportError:
        raise MissingExtraError("torchjd", "dev", "the method 'torchjd'") from None
    known = {
        key: value
        for key, value in vars(aggregation).items()
        if isinstance(value, type) and issubclass(value, aggregation.Aggregator)
    }
    if name not in known:
        raise unknown_name("aggregator of torchjd", name, known)
    try:
        return known[name](**options)
    except Exception as error:  # abstract classes, missing or wrong arguments, absent solvers
        raise SpecError(f"torchjd's {name} cannot be made with options {options}: {error}") from None
