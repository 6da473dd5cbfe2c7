"""Methods whose weights are a point of the simplex that moves a little at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.junction import Step
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import safe_divide

__all__ = ["SimplexWeights"]


class SimplexWeights(GradientAggregator):
    """Base of such methods: keeps the point, and shares it out when a task is absent.

    The weights of the present tasks are scaled to sum one for the step, and back for the state, so
    that an absent task finds its share again. Subclasses override :meth:`move`.
    """

    traceable = False

    shares: Tensor

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        count = len(self.tasks)
        self.register_buffer("shares", torch.full((count,), 1 / count, dtype=torch.float64))
        self._moved: tuple[Tensor, Tensor] | None = None

    def move(self, shares: Tensor, gram: Tensor, step: Step | None) -> Tensor:
        """The next point of the simplex, given the current one, in float64."""
        raise NotImplementedError

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The point that the step moves to."""
        moved = self.move(self._present_shares(step)[0], gram, step)
        # update() of the same step would compute the same again, communication included
        self._moved = (gram, moved)
        return moved.to(gram)

    def update(self, step: Step) -> None:
        """Keep the point."""
        shares, total = self._present_shares(step)
        remembered, self._moved = self._moved, None
        if remembered is not None and remembered[0] is step.gram:
            moved = remembered[1]
        elif step.present:
            moved = self.move(shares, step.gram, step)
        else:
            return
        self.remember("shares", moved * total, step)

    def _present_shares(self, step: Step | None) -> tuple[Tensor, Tensor]:
        shares = self.shares if step is None else step.pick(self.shares)
        total = shares.sum()
        uniform = torch.full_like(shares, 1 / max(len(shares), 1))
        return torch.where(total > 0, safe_divide(shares, total), uniform), total
