"""The option ``primary`` of methods with a main task."""

from collections.abc import Sequence

from mtlkit.errors import unknown_name


def primary_flags(primary: str | int | None, tasks: Sequence[str]) -> list[float]:
    """One for the main task and zero for all others.

    Args:
        primary: name of the task, or its index if no task has that name; None for the first.
        tasks: names of the tasks.
    """
    name = tasks[0] if primary is None else str(primary)
    if name not in tasks and isinstance(primary, int) and -len(tasks) <= primary < len(tasks):
        name = tasks[primary]
    if name not in tasks:
        raise unknown_name("task", name, tasks)
    return [float(task == name) for task in tasks]
