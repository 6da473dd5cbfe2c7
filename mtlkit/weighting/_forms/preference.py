"""The option ``preference``: how much each task counts."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.numbers import Numbers, per_task


class PreferredMerge(GradientAggregator):
    """A merge with a preference, one number per task: ``state.preferred``, ones without the option."""

    def __init__(self, tasks: Tasks, *, preference: Numbers | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.preference = preference
        if preference is not None:
            self.waived_laws = {
                "permutation": "the preference belongs to named tasks",
                "absent_task": "the preference belongs to named tasks",
                "single_task": "a single gradient is multiplied by its preference",
            }
        self.add_constant("preferred", preference_of(self.name, preference, self.tasks))

    def preferred_or_mean(self, state: State) -> Tensor:
        """Return the (P,) preference; 1/P for every task without one."""
        preferred: Tensor = state.preferred
        return preferred if self.preference is not None else preferred / len(preferred)


def preference_of(method: str, given: Numbers | None, tasks: Sequence[str]) -> list[float]:
    """Return preferences of zero or more, one per task; 1 for tasks that are not named.

    Args:
        method: name of the method, for the error.
        given: the option ``preference``.
        tasks: names of the tasks.
    """
    values = per_task(f"preference of {method}", given, tasks, 1.0, low=0.0)
    if not any(values):
        raise SpecError(f"preference of {method} is all zero; at least one task must count")
    return values
