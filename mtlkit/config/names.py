"""Names of tasks, from whatever describes them."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from mtlkit.errors import SpecError


def task_names(tasks: int | Sequence[Any] | Mapping[str, Any]) -> tuple[str, ...]:
    """Read the names of tasks from a number, names, or objects with a name.

    >>> task_names(3), task_names(["seg", "depth"])
    (('0', '1', '2'), ('seg', 'depth'))
    """
    wrong = SpecError(
        f"tasks must be a number or a sequence of names, not {tasks!r}; "
        "for example tasks=3 or tasks=('seg', 'depth')"
    )
    if isinstance(tasks, bool | str | bytes):
        raise wrong
    if isinstance(tasks, int | Integral):  # also NumPy's integers
        count = int(tasks)
        if count < 1:
            raise SpecError(f"tasks must be at least 1, not {count}")
        return tuple(str(index) for index in range(count))
    if isinstance(tasks, set | frozenset):
        raise SpecError(f"tasks must have an order, which a set has not: give a list, not {tasks!r}")
    try:
        names = tuple(str(item) if isinstance(item, str) else item.name for item in tasks)
    except (TypeError, AttributeError):
        raise wrong from None
    if not names:
        raise SpecError("tasks is empty; name at least one task")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SpecError(f"task names must differ; given more than once: {', '.join(repeated)}")
    return names
