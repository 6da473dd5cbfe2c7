"""Methods whose weights are a point of the simplex that moves a little at every step."""

from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


class SimplexWeights(GradientAggregator):
    """Base of such methods: keeps the point, and rescales it when a task is absent.

    The weights of the present tasks are scaled to sum one for the step, and back for the state, so
    that an absent task keeps its share. Subclasses override :meth:`move`.
    """

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.add_state("shares", 1 / len(self.tasks))

    def move(self, shares: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """The next point of the simplex, given the current one, and the new state."""
        raise NotImplementedError(f"{type(self).__name__} does not move its weights")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """The point that the step moves to."""
        total = state.shares.sum()
        even = torch.full_like(state.shares, 1 / len(state.shares))
        shares = torch.where(total > 0, safe_divide(state.shares, total), even)
        moved, new = self.move(shares, gram.double(), state)
        return moved, new.replace(shares=moved * total)


def project_onto_simplex(point: Tensor) -> Tensor:
    """The nearest vector with non-negative entries of sum one."""
    descending = point.sort(descending=True).values
    rank = torch.arange(1, len(point) + 1, device=point.device)
    excess = (descending.cumsum(dim=0) - 1) / rank
    positive = (descending > excess).sum().clamp(min=1)
    return (point - excess.gather(0, positive.reshape(1) - 1)).clamp(min=0)
