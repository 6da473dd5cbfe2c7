"""RotoGrad's gradient-magnitude homogenization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import closed_form, safe_divide

__all__ = ["Scale"]


@register_method("scale")
class Scale(GradientAggregator):
    r"""Give all task gradients one norm, set by the tasks that have converged least.

    With :math:`U_k = G_k / \|G_k\|`, the merged gradient is :math:`C \sum_k U_k` where

    .. math:: C = \sum_k \alpha_k \|G_k\|, \qquad
        \alpha_k = \frac{\|G_k\| / \|G_k^0\|}{\sum_i \|G_i\| / \|G_i^0\|}

    and :math:`G_k^0` is the task's first gradient (section 3.1 of the paper). A task whose gradient
    is zero takes no part in the step; its reference is the first gradient that is not zero.

    Args:
        burn_in: read the references anew at this step (the authors' code uses 20); 0 keeps the first.
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    year = 2022

    initial_norms: Tensor
    seen: Tensor

    def __init__(self, tasks: Tasks, *, burn_in: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        if burn_in < 0:
            raise SpecError(f"burn_in of scale must be 0 or more, not {burn_in}")
        self.burn_in = burn_in
        self.register_buffer("initial_norms", torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(len(self.tasks), dtype=torch.long))

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        r""":math:`C / \|G_k\|`."""
        return closed_form(self._homogenize, gram, *self._state(step)).to(gram.dtype)

    def update(self, step: Step) -> None:
        """Keep the references."""
        references = closed_form(self._references, step.gram, *self._state(step))
        self.remember("initial_norms", references, step)
        self.count("seen", step)

    def _state(self, step: Step | None) -> tuple[Tensor, Tensor]:
        if step is None:
            return self.initial_norms, self.seen
        return step.pick(self.initial_norms), step.pick(self.seen)

    def _homogenize(self, xp: Any, gram: Any, initial: Any, seen: Any) -> Any:
        norms = xp.sqrt(gram.diagonal())
        ratios = safe_divide(norms, self._references(xp, gram, initial, seen), xp)
        alphas = safe_divide(ratios, ratios.sum(), xp)
        return safe_divide((alphas * norms).sum(), norms, xp)

    def _references(self, xp: Any, gram: Any, initial: Any, seen: Any) -> Any:
        renew = (initial == 0) | (seen + 1 == self.burn_in)
        return xp.where(renew, xp.sqrt(gram.diagonal()), initial)
