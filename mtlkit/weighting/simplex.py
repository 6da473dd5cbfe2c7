"""Methods whose weights are a point of the simplex that moves a little at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.host import Matrix, as_array, as_tensor, is_finite
from mtlkit.junction import Step
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["SimplexWeights"]


class SimplexWeights(GradientAggregator):
    """Base of such methods: keeps the point, and shares it out when a task is absent.

    The weights of the present tasks are scaled to sum one for the step, and back for the state, so
    that an absent task finds its share again. Subclasses override :meth:`move`, and
    :meth:`spread` if the point is not what the gradients are weighed with.
    """

    traceable = False

    shares: Tensor

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        count = len(self.tasks)
        self.register_buffer("shares", torch.full((count,), 1 / count, dtype=torch.float64))

    def move(self, shares: Matrix, gram: Matrix, step: Step | None) -> Matrix:
        """The next point of the simplex, given the current one, for a finite Gram matrix."""
        raise NotImplementedError

    def spread(self, point: Matrix) -> Matrix:
        """The weights of the gradients at a point of the simplex: the point, unless overridden."""
        return point

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The point that the step moves to."""
        moved, total = self._move(gram, step)
        self.carry(gram, (moved, total))
        return as_tensor(self.spread(moved), gram)

    def update(self, step: Step) -> None:
        """Keep the point."""
        found = self.carried(step)
        if not step.present:
            return
        moved, total = found or self._move(step.gram, step)
        self.remember("shares", moved * total, step)

    def _move(self, gram: Tensor, step: Step | None) -> tuple[Matrix, float]:
        """The point over the present tasks, and the sum that these have together."""
        shares = as_array(self.shares if step is None else step.pick(self.shares))
        total = float(shares.sum())
        shares = shares / total if total > 0 else np.full(len(shares), 1 / len(shares))
        matrix = as_array(gram)
        if not is_finite(matrix):
            return np.full(len(shares), np.nan), total
        return self.move(shares, matrix, step), total
