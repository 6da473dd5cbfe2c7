"""The RotoGrad paper's loss normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import safe_divide

__all__ = ["Normalize"]


@register_method("normalize")
class Normalize(GradientAggregator):
    r"""Divide every loss by its value at the first step, and from step ``burn_in`` on by that step's.

    .. math:: L_k \leftarrow L_k / |L_k^{ref}|

    (appendix C.1 of the paper: losses that fall quickly at first would else be made too small). A
    loss of zero is no reference; the first that is not zero becomes it.

    Args:
        burn_in: the step at which the references are read anew; 0 keeps the first.
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    year = 2022
    uses_losses = True

    reference: Tensor
    seen: Tensor

    def __init__(self, tasks: Tasks, *, burn_in: int = 20, **common: Any) -> None:
        super().__init__(tasks, **common)
        if burn_in < 0:
            raise SpecError(f"burn_in of normalize must be 0 or more, not {burn_in}")
        self.burn_in = burn_in
        self.register_buffer("reference", torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(len(self.tasks), dtype=torch.long))

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """One divided by the reference."""
        reference = self._reference(losses, step)
        return torch.where(reference == 0, 1.0, safe_divide(torch.ones_like(reference), reference)).to(
            losses.dtype
        )

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Keep the references."""
        self.remember("reference", self._reference(losses, step), step)
        self.count("seen", step)

    def _reference(self, losses: Tensor, step: Any) -> Tensor:
        kept = self.reference if step is None else step.pick(self.reference)
        seen = self.seen if step is None else step.pick(self.seen)
        renew = (kept == 0) | (seen + 1 == self.burn_in)
        if not self.training:
            renew = kept == 0
        return torch.where(renew, losses.abs().double(), kept)
