"""Methods that minimize one function of the losses."""

from typing import Any

import torch
from torch import Tensor

from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.options import Numbers, preference_of


class Scalarization(GradientAggregator):
    """Minimize a function f of the losses.

    The weights are its partial derivatives, held constant, so the gradient of the total is that of f;
    a constant is added so that the total's value is that of f as well.
    """

    uses_losses = True

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the value of f and its (P,) partial derivatives."""
        raise NotImplementedError(f"{type(self).__name__} has no function of the losses")

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the partial derivatives of f, or NaN where f has no value, so that no step is taken."""
        value, derivatives = self.scalarize(losses, state)
        return torch.where(torch.isnan(value), torch.nan, derivatives), state

    def loss_penalty(self, losses: Tensor, state: State) -> Tensor | None:
        """Return the difference between f and the weighted sum."""
        value, derivatives = self.scalarize(losses, state)
        return value - derivatives @ losses.to(derivatives.dtype)


class PreferredScalarization(Scalarization):
    """A function of the losses and of a preference, one number per task: ``state.weighting``."""

    weighting: Tensor

    def __init__(self, tasks: Tasks, *, preference: Numbers | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.add_state("weighting", 1.0)
        self.set_preference(preference)

    def set_preference(self, preference: Numbers | Tensor | None) -> None:
        """Change the preference, for example to a new random one before each step."""
        if isinstance(preference, Tensor):
            preference = preference.tolist()
        values = preference_of(self.name, preference, self.tasks)
        self.preference = preference
        self.weighting.copy_(torch.tensor(values, dtype=torch.float64, device=self.weighting.device))
