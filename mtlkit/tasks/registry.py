"""Kinds of tasks by name, which third-party packages extend by entry points of ``mtlkit.tasks``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mtlkit.config.registry import Registry, option_names
from mtlkit.config.spec import Part, SpecLike, parse_call
from mtlkit.errors import SpecError

if TYPE_CHECKING:
    from mtlkit.tasks.task import Task

T = TypeVar("T", bound=Callable[..., Any])

kinds: Registry[Any] = Registry("kind of task", "mtlkit.tasks", "mtlkit.tasks")


def register_task(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Register a kind of task: a :class:`~mtlkit.Task` subclass, or a function that returns one.

    It is called with the task's name; its other arguments are options by name.
    """
    return kinds.register(name, replace=replace)


def list_tasks() -> list[str]:
    """Sorted names of all kinds of tasks, plugins included."""
    return kinds.names()


def task_options(kind: str) -> frozenset[str]:
    """Options of a kind of task. Every kind has ``metric``, the name of its main metric."""
    return option_names(kinds.get(kind)) | {"metric"}


def create_task(kind: SpecLike, name: str, **overrides: Any) -> Task:
    """A task from its kind, such as ``"binary(metric=auc)"`` or ``"classification(classes=5)"``.

    Args:
        kind: name and options of the kind; ``metric`` names the main metric, for every kind.
        name: of the task.
        overrides: options that replace those of the string.
    """
    from mtlkit.tasks.task import Task

    part = kinds.resolve(parse_call(kind))
    part = Part(part.name, {**part.options, **overrides}, part.arguments)
    if part.arguments:
        raise SpecError(f"options of kind {part.name} are key=value, not {part.arguments[0]!r}")
    options = dict(part.options)
    own = option_names(kinds.get(part.name))
    metric = None if "metric" in own else options.pop("metric", None)
    factory = kinds.check(Part(part.name, options))
    try:
        inspect.signature(factory).bind(name, **options)
    except TypeError as error:
        raise SpecError(f"task {name!r} of kind {part}: {error}") from None
    made = factory(name, **options)
    if not isinstance(made, Task):
        raise SpecError(f"kind of task {part.name!r} made {type(made).__name__}; it must be a Task")
    if made.kind == "custom":
        made.kind = part.name
    made.spec = str(part)
    if metric is not None:
        made.prefer(str(metric))
    return made
