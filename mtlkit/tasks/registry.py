"""The registry of kinds of tasks; other packages add theirs by entry points ``mtlkit.tasks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mtlkit.config.registry import Registry, option_names

T = TypeVar("T", bound=Callable[..., Any])

kinds: Registry[Any] = Registry("kind of task", "mtlkit.tasks", "mtlkit.tasks")


def register_task(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Register a kind of task: a :class:`~mtlkit.Task` subclass, or a function that returns a task.

    It is called with the task's name; its keyword-only arguments are the options of the config string.

    Args:
        name: the kind's name in config strings.
        replace: replace a kind of the same name instead of raising an error.

    >>> import mtlkit
    >>> from torch.nn import functional
    >>> @mtlkit.register_task("robust_regression")
    ... def robust_regression(name, *, delta: float = 1.0):
    ...     def huber(prediction, target):
    ...         return functional.huber_loss(prediction, target, delta=delta)
    ...     return mtlkit.Task(name, huber, outputs=1)
    >>> mtlkit.tasks.create_task("robust_regression(delta=0.5)", "price").kind
    'robust_regression'
    """
    return kinds.register(name, replace=replace)


def list_tasks() -> list[str]:
    """Return the sorted names of all kinds of tasks, plugins included.

    >>> from mtlkit.tasks import list_tasks
    >>> "classification" in list_tasks()
    True
    """
    return kinds.names()


def task_options(kind: str) -> frozenset[str]:
    """Return the options of a kind of task. Every kind has ``metric``, the name of its main metric."""
    return option_names(kinds.get(kind)) | {"metric"}
