"""Options that hold one number per task."""

import math
from collections.abc import Mapping, Sequence

from mtlkit.errors import SpecError, unknown_name

Numbers = Sequence[float] | Mapping[str, float]
"""One number per task, in task order or by name."""


def per_task(
    option: str, given: Numbers | None, tasks: Sequence[str], default: float, low: float = -math.inf
) -> list[float]:
    """Return one number per task from a list in task order or a mapping from names.

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
    if len(values) != len(tasks) or not numbers or not all(math.isfinite(v) for v in values):
        least = "" if low == -math.inf else f" of {low:g} or more"
        raise SpecError(
            f"{option} must be {len(tasks)} numbers{least}, one per task ({', '.join(tasks)}), "
            f"or a mapping from task names; not {given!r}"
        )
    return values
