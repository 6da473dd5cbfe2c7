"""Merges with a main task, which the others are compared with."""

from typing import Any

from mtlkit.errors import unknown_name
from mtlkit.method import GradientAggregator, Tasks


class PrimaryMerge(GradientAggregator):
    """A merge with a main task: ``state.is_primary`` is one for it and zero for all others.

    Args:
        tasks: number of tasks, or their names.
        primary: name of the main task, or its index if no task has that name; without it the first.
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
