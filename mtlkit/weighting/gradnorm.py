"""GradNorm: learn weights that balance the training rates of the tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import safe_divide

__all__ = ["GradNorm"]


@register_method("gradnorm")
class GradNorm(GradientAggregator):
    r"""Learn task weights so that slow tasks get larger gradients.

    The weights are parameters of the method, trained by the user's optimizer on

    .. math:: \sum_k \big|\, w_k \|G_k\| - \bar G\, r_k^{\alpha} \,\big|, \qquad
        \bar G = \frac1K \sum_k w_k \|G_k\|, \quad
        r_k = \frac{L_k / L_k^0}{\frac1K \sum_i L_i / L_i^0}

    with the target :math:`\bar G r_k^\alpha` held constant, and are brought back to sum K before every
    step. As in the RotoGrad paper's comparison, they act on the gradients of the shared features;
    each head follows its own loss (the GradNorm paper's total loss weighs the heads too). A weight
    that a large step made negative is set to zero.

    Args:
        alpha: how strongly the training rates are pulled together; 0 equalises the norms.
    """

    paper = (
        "Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask "
        "Networks, ICML 2018"
    )
    year = 2018
    uses_losses = True

    initial_losses: Tensor

    def __init__(self, tasks: Tasks, *, alpha: float = 1.5, **common: Any) -> None:
        super().__init__(tasks, **common)
        if alpha < 0:
            raise SpecError(f"alpha of gradnorm must be 0 or more, not {alpha}")
        self.alpha = alpha
        self.task_weights = nn.Parameter(torch.ones(len(self.tasks)))
        self.register_buffer("initial_losses", torch.zeros(len(self.tasks)))

    def prepare(self) -> None:
        """Bring the weights back to sum K."""
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.task_weights.copy_(_normalised(self.task_weights))

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The learnt weights; over the tasks present, their mean is one."""
        current = self.task_weights.detach()
        return _normalised(current if step is None else step.pick(current)).to(gram.dtype)

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """The weights."""
        return (self.task_weights,)

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        r""":math:`\|G_k\| \operatorname{sign}(w_k \|G_k\| - \bar G r_k^\alpha)`."""
        if not step.present:
            return (torch.zeros_like(self.task_weights),)
        if step.losses is None:
            raise UsageError("gradnorm needs the losses: call backward() on method.total(losses)")
        norms = step.gram.diagonal().sqrt()
        scaled = self.weights(step.gram, step) * norms
        rates = safe_divide(step.losses, self._reference(step)).to(norms.dtype)
        relative = safe_divide(rates, rates.mean()).clamp(min=0)
        target = scaled.mean() * relative**self.alpha
        gradient = norms * torch.sign(scaled - target) * step.scale
        if step.complete:
            return (gradient.to(self.task_weights.dtype),)
        index = torch.tensor(step.present, device=gradient.device)
        full = torch.zeros_like(self.task_weights)
        return (full.index_copy(0, index, gradient.to(full.dtype)),)

    def update(self, step: Step) -> None:
        """Keep the initial losses."""
        if step.losses is not None:
            self.remember("initial_losses", self._reference(step), step)

    def _reference(self, step: Step) -> Tensor:
        assert step.losses is not None
        initial = step.pick(self.initial_losses)
        return torch.where(initial == 0, step.losses.to(initial.dtype), initial)


def _normalised(weights: Tensor) -> Tensor:
    """Non-negative with sum K. What already is, within rounding, is left as it is, bit for bit."""
    positive = weights.clamp(min=0)
    total = positive.sum()
    done = (weights >= 0).all() & ((total - len(weights)).abs() <= 1e-6 * len(weights))
    scaled = torch.where(total > 0, positive * (len(weights) / total), torch.ones_like(weights))
    return torch.where(done, weights, scaled)
