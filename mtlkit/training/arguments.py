"""Checks of the Trainer's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from mtlkit.errors import SpecError, unknown_name
from mtlkit.tasks import Task, task_names


def check_choice(name: str, given: Any, known: Sequence[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if given not in known:
        raise unknown_name(f"value of {name}", str(given), known)


def check_at_least(least: int, numbers: Mapping[str, int | None]) -> None:
    """Refuse a number below ``least``; None passes."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise SpecError(f"{name} must be at least {least}, not {number}")


def check_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks, which must have losses and different names."""
    task_names(tasks)
    for task in tasks:
        if not isinstance(task, Task):
            raise SpecError(
                f"a Trainer needs Task objects, with losses; {task!r} is only a name. "
                "For example mtlkit.Task.classification('left', classes=10)"
            )
    return tuple(tasks)


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise for an optimizer that would leave the model as it is."""
    known = {id(parameter) for parameter in model.parameters()}
    if not any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
        raise SpecError(
            "the optimizer holds no parameter of the model, so nothing would be trained; create it with "
            "mtlkit.param_groups(model, lr=...)"
        )


def check_best_by(best_by: str, tasks: Sequence[Task]) -> str:
    """``improvement``, ``loss``, or the metric of a task that has it."""
    known = ["improvement", "loss"]
    for task in tasks:
        known += [f"{task.name}/{metric}" for metric in (*task.higher_is_better, "loss")]
    check_choice("best_by", best_by, known)
    return best_by
