"""CR-MOGM: smooth another method's weights over the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.host import Matrix, as_array, as_tensor
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["CRMOGM"]


@register_method("cr_mogm")
class CRMOGM(GradientAggregator):
    r"""Smooth the weights that another method finds, so that noise in them does not bias the steps.

    .. math:: w^t = \alpha\, w^{t-1} + (1 - \alpha)\, \hat w^t, \qquad w^0 = \hat w^1

    with the weights :math:`\hat w^t` of the method ``inner``: ``cr_mogm(inner=cagrad(c=0.4))``. What
    inner needs is needed, and its state is kept and saved with this method's. The paper lets
    :math:`\alpha` grow as the learning rate falls; ``method.alpha`` may be set at any time.

    Args:
        inner: config string of a method that has a weight per task.
        alpha: share of the old weights; 0 is inner itself.
    """

    paper = (
        "Zhou et al., On the Convergence of Stochastic Multi-Objective Gradient Manipulation and "
        "Beyond, NeurIPS 2022"
    )
    year = 2022
    traceable = False

    smoothed: Tensor
    seen: Tensor

    def __init__(self, tasks: Tasks, *, inner: str = "mgda", alpha: float = 0.9, **common: Any) -> None:
        super().__init__(tasks, **common)
        if not 0 <= alpha <= 1:
            raise SpecError(f"alpha of cr_mogm must be in [0, 1], not {alpha}")
        self.inner = inner
        self.alpha = alpha
        self.method = _create(inner, self.tasks)
        self.uses_losses = self.method.uses_losses  # type: ignore[misc]
        self.register_buffer("smoothed", torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(len(self.tasks), dtype=torch.long))

    def prepare(self) -> None:
        """Prepare inner."""
        self.method.prepare()

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The smoothed weights."""
        found = self._smooth(gram, step)
        self.carry(gram, found)
        return as_tensor(found[1], gram)

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """Those of inner."""
        return self.method.junction_parameters()

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Those of inner."""
        return self.method.junction_gradients(step)

    def update(self, step: Step) -> None:
        """Keep the smoothed weights and what inner keeps."""
        found = self.carried(step)
        if not step.present:
            return
        weights, smoothed = found or self._smooth(step.gram, step)
        self.remember("smoothed", smoothed, step)
        self.count("seen", step)
        outer, step.weights = step.weights, weights
        self.method.update(step)
        step.weights = outer

    def _smooth(self, gram: Tensor, step: Step | None) -> tuple[Tensor, Matrix]:
        """The weights that inner finds, and these smoothed."""
        weights = self._call("weights", self.method, gram, step)
        found = as_array(weights)
        kept = as_array(self.smoothed if step is None else step.pick(self.smoothed))
        seen = as_array(self.seen if step is None else step.pick(self.seen))
        average = self.alpha * kept + (1 - self.alpha) * found
        return weights, np.where(seen == 0, found, average)


def _create(inner: str, tasks: tuple[str, ...]) -> GradientAggregator:
    from mtlkit.weighting.create import create_method

    method = create_method(inner, tasks)
    whole = any(part._merges_whole for part in method.parts)
    if method._plays != {"merge"} or len(method.parts) != 1 or whole:
        raise SpecError(
            f"inner of cr_mogm must be one method with a weight per task, such as 'mgda' or "
            f"'cagrad(c=0.4)', not {inner!r}; other parts are joined outside: 'uw+cr_mogm(inner=mgda)'"
        )
    if method.wrt != "features" or not method.sync:
        raise SpecError(f"give wrt and sync to cr_mogm, not to its inner {inner!r}")
    return method
