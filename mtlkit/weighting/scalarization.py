"""What methods share that minimise one function of the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError, unknown_name
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["Numbers", "PreferredScalarization", "Scalarization", "log_losses", "per_task"]

Numbers = Sequence[float] | Mapping[str, float]
"""One number per task, in task order or by name."""


class Scalarization(GradientAggregator):
    """Minimise a function of the losses, f(L_1 .. L_K).

    The weights are its partial derivatives, held constant, so the gradient of the total is that of f;
    a constant is added so that the total's value is that of f as well.
    """

    uses_losses = True

    def scalarize(self, losses: Tensor, step: Any = None) -> tuple[Tensor, Tensor]:
        """The value of f and its (P,) partial derivatives."""
        raise NotImplementedError

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """Partial derivatives of f."""
        return self.scalarize(losses, step)[1].to(losses.dtype)

    def loss_penalty(self, losses: Tensor, step: Any = None) -> Tensor:
        """The constant between the weighted sum and f."""
        value, slopes = self.scalarize(losses, step)
        return (value - slopes @ losses.to(slopes.dtype)).to(losses.dtype)


class PreferredScalarization(Scalarization):
    """A function of the losses and of a preference, one number per task."""

    _preference: Tensor

    def __init__(self, tasks: Tasks, *, preference: Numbers | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.register_buffer("_preference", torch.ones(len(self.tasks), dtype=torch.float64))
        self.set_preference(preference)

    def set_preference(self, preference: Numbers | Tensor | None) -> None:
        """Change the preference, for example to a new random one before each step."""
        if isinstance(preference, Tensor):
            preference = preference.tolist()
        option = f"preference of {self.name}"
        values = per_task(option, preference, self.tasks, 1.0, low=0.0)
        if not any(values):
            raise SpecError(f"{option} is all zero; at least one task must count")
        self.preference = preference
        self._preference.copy_(torch.tensor(values, dtype=torch.float64))

    def _preference_of(self, step: Any) -> Tensor:
        """The present tasks' preference."""
        return self._preference if step is None else step.pick(self._preference)


def log_losses(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms in float64, zero where a loss is zero, and a mask of the losses that are not.

    A negative loss has no logarithm: it gives NaN, and with it a total that is not finite.
    """
    active = losses != 0
    exact = losses.double()
    return torch.log(torch.where(active, exact, torch.ones_like(exact))), active


def per_task(
    option: str, given: Numbers | None, tasks: Sequence[str], default: float, low: float = -torch.inf
) -> list[float]:
    """One number per task from a list in task order or a mapping from names.

    Args:
        option: what the numbers are, for the error.
        given: the numbers; tasks that a mapping does not name get the default, as all do for None.
        tasks: names of the tasks.
        default: the number of a task that is not named.
        low: the least number that is accepted.
    """
    if given is None:
        values = [default] * len(tasks)
    elif isinstance(given, Mapping):
        named = {str(key): value for key, value in given.items()}
        for key in named:
            if key not in tasks:
                raise unknown_name("task", key, tasks)
        values = [named.get(name, default) for name in tasks]
    else:
        values = list(given)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and v >= low for v in values)
    if len(values) != len(tasks) or not numbers or not all(abs(v) < torch.inf for v in values):
        least = "" if low == -torch.inf else f" of {low:g} or more"
        raise SpecError(
            f"{option} must be {len(tasks)} numbers{least}, one per task ({', '.join(tasks)}), "
            f"or a mapping from task names; not {given!r}"
        )
    return values
