"""Methods whose weights are a point of the simplex that moves at every step."""

from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


class SimplexWeights(GradientAggregator):
    """Weights that start at 1/K; subclasses override :meth:`move`.

    The weights of the present tasks are rescaled to sum to one for the step, and back for the state, so
    that an absent task keeps its weight.
    """

    def __init__(self, tasks: Tasks, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.add_state("w", 1 / len(self.tasks))

    def move(self, w: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the next point of the simplex, given the current one, and the new state."""
        raise NotImplementedError(f"{type(self).__name__} does not move its weights")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the point that the step moves to."""
        total = state.w.sum()
        even = torch.full_like(state.w, 1 / len(state.w))
        w = torch.where(total > 0, safe_divide(state.w, total), even)
        moved, new = self.move(w, gram.double(), state)
        return moved, new.replace(w=moved * total)


def project_onto_simplex(point: Tensor) -> Tensor:
    """Return what ``_solvers.project_onto_simplex`` does, without leaving the device."""
    descending = point.sort(descending=True).values
    rank = torch.arange(1, len(point) + 1, device=point.device)
    shifts = (descending.cumsum(dim=0) - 1) / rank
    positive = (descending > shifts).sum().clamp(min=1)
    return (point - shifts.gather(0, positive.reshape(1) - 1)).clamp(min=0)
