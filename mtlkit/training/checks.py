"""Checks of the arguments and the first step of a Trainer: they raise if it could not train as asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.method.method import Method
from mtlkit.tasks import Task, task_names

BestBy = str | Mapping[str, float]
"""Criterion of the best validation; see :class:`~mtlkit.Trainer`."""


def check_choice(name: str, given: Any, known: Sequence[str]) -> None:
    """Raise for a value that is not known."""
    if given not in known:
        raise unknown_name(f"value of {name}", str(given), known)


def check_at_least(least: int, **numbers: int | None) -> None:
    """Raise for a number below ``least``; None is accepted."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise SpecError(f"{name} must be at least {least}, not {number}")


def check_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks, which must be :class:`Task` objects with different names."""
    task_names(tasks)
    for task in tasks:
        if not isinstance(task, Task):
            raise SpecError(
                f"a Trainer needs Task objects with losses; {task!r} is only a name. "
                "For example mtlkit.Task.classification('left', classes=10)"
            )
    return tuple(tasks)


def check_best_by(best_by: BestBy, tasks: Sequence[Task]) -> BestBy:
    """Return ``best_by`` after checking its metrics; of a row, only those of these tasks."""
    known = [f"{task.name}/{metric}" for task in tasks for metric in (*task.higher_is_better, "loss")]
    if isinstance(best_by, Mapping):
        row = {key: value for key, value in best_by.items() if key in known and value}
        if not row:
            raise SpecError(f"best_by names no metric of the tasks; their metrics: {', '.join(known)}")
        return row
    common = set.intersection(*(set(task.higher_is_better) for task in tasks))
    over_tasks = [f"mean/{metric}" for metric in sorted(common)]
    check_choice("best_by", best_by, ["improvement", "loss", *over_tasks, *known])
    return best_by


def check_single_task(
    single_task: Mapping[str, Mapping[str, float]], tasks: Sequence[Task]
) -> Mapping[str, Mapping[str, float]]:
    """Return the metrics of single-task models after checking their names."""
    known = {task.name: (*task.higher_is_better, "loss") for task in tasks}
    for name, metrics in single_task.items():
        check_choice("single_task_metrics", name, list(known))
        for metric in metrics:
            check_choice(f"single_task_metrics of {name}", metric, known[name])
    return single_task


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that all tasks share."""
    network: Any = getattr(model, "architecture", model)
    if not hasattr(network, "shared_parameters"):
        raise SpecError(
            "clip='shared' needs a model with shared_parameters(), such as an Architecture; "
            f"{type(model).__name__} has none: set clip='all'"
        )
    return list(network.shared_parameters())


def find_method(model: nn.Module, names: Sequence[str]) -> Method | None:
    """Return the method of a model, which must be ``model.method`` and know these tasks."""
    method = getattr(model, "method", None)
    if method is None:
        for path, module in model.named_modules():
            numbers = tuple(map(str, range(len(names))))  # those of create_method(..., tasks=2)
            same = isinstance(module, Method) and set(module.tasks) in (set(names), set(numbers))
            if same and len(names) > 1:
                raise SpecError(
                    f"the model has its method under the name {path!r}, where the Trainer does not find "
                    f"it; name it 'method', for example self.method = self.{path}"
                )
        return None
    if not isinstance(method, Method):
        raise SpecError(f"model.method must come from mtlkit.create_method, not {method!r}")
    if set(method.tasks) != set(names):
        raise SpecError(
            f"the method knows the tasks {', '.join(method.tasks)}; given are {', '.join(names)}"
        )
    return method


def check_losses(losses: Mapping[str, Tensor | None]) -> None:
    """Raise if the loss of a task does not depend on any parameter that is trained."""
    detached = [name for name, loss in losses.items() if loss is not None and not loss.requires_grad]
    if detached:
        raise UsageError(
            f"the loss of {' and '.join(map(repr, detached))} does not depend on any parameter that "
            "is trained, so it has no gradient: is the prediction detached, computed under "
            "torch.no_grad(), or its part of the network frozen? Leave out tasks that do not train"
        )


def prediction_of(predictions: Any, name: str) -> Tensor:
    """Return the prediction of one task, in float32 or better."""
    if not isinstance(predictions, Mapping):
        raise UsageError(
            f"the model must return predictions by task name, not {type(predictions).__name__}"
        )
    if name not in predictions:
        raise unknown_name("task in the model's predictions", name, map(str, predictions))
    prediction: Tensor = predictions[name]
    if prediction.dtype in (torch.float16, torch.bfloat16):
        return prediction.float()
    return prediction
