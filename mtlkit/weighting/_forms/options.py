"""Options that say something about each task: numbers, a preference, the main task."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from torch import Tensor

from mtlkit.config.annotations import Ge, describe_range, fits
from mtlkit.errors import SpecError, unknown_name
from mtlkit.method import GradientAggregator, State, Tasks

Numbers = Sequence[float] | Mapping[str, float]
"""One number per task, in task order or by name."""


def per_task(
    option: str, given: Numbers | None, tasks: Sequence[str], default: float, number: Any = float
) -> list[float]:
    """Return one number per task from a list in task order or a mapping from names.

    Args:
        option: what the numbers are, for the error.
        given: the numbers; tasks that a mapping does not name get the default, as all do for None.
        tasks: names of the tasks.
        default: the number of a task that is not named.
        number: annotated type of each number.
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
    if len(values) != len(tasks) or not all(fits(value, number) for value in values):
        limits = describe_range(getattr(number, "__metadata__", ()))
        raise SpecError(
            f"{option} must be {len(tasks)} numbers{limits and ' of ' + limits}, one per task "
            f"({', '.join(tasks)}), or a mapping from task names; not {given!r}"
        )
    return values


def preference_of(method: str, given: Numbers | None, tasks: Sequence[str]) -> list[float]:
    """Return how much each task counts: zero or more, and 1 for tasks that are not named."""
    values = per_task(f"preference of {method}", given, tasks, 1.0, Annotated[float, Ge(0)])
    if not any(values):
        raise SpecError(f"preference of {method} is all zero; at least one task must count")
    return values


class PreferredMerge(GradientAggregator):
    """A merge with a preference, one number per task: ``state.preferred``, ones without the option."""

    def __init__(self, tasks: Tasks, *, preference: Numbers | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.preference = preference
        if preference is not None:
            named = dict.fromkeys(
                ("permutation", "absent_task"), "the preference belongs to named tasks"
            )
            single = {"single_task": "a single gradient is multiplied by its preference"}
            self.waived_laws = single | dict(self.waived_laws) | named
        self.add_constant("preferred", preference_of(self.name, preference, self.tasks))

    def preferred_or_mean(self, state: State) -> Tensor:
        """Return the (P,) preference; 1/P for every task without one."""
        preferred: Tensor = state.preferred
        return preferred if self.preference is not None else preferred / len(preferred)


class PrimaryMerge(GradientAggregator):
    """A merge with a main task: ``state.is_primary`` is one for it and zero for all others.

    Args:
        tasks: number of tasks, or their names.
        primary: name of the main task, or its index if no task has that name; the first by default.
    """

    waived_laws = {"permutation": "the first task is the main one, unless another is named"}

    def __init__(self, tasks: Tasks, *, primary: str | int | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.primary = primary
        name = self.tasks[0] if primary is None else str(primary)
        count = len(self.tasks)
        if name not in self.tasks and isinstance(primary, int) and -count <= primary < count:
            name = self.tasks[primary]
        if name not in self.tasks:
            raise unknown_name("task", name, self.tasks)
        if primary is not None:
            self.waived_laws = dict.fromkeys(("permutation", "absent_task"), "the main task is named")
        self.add_constant("is_primary", [float(task == name) for task in self.tasks])
