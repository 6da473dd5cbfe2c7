"""The abstract :class:`Architecture`: a shared part, a fork, and one part per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mtlkit.architectures.features import Features
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.junction import flatten_features
from mtlkit.registry import methods
from mtlkit.spec import Part, format_spec
from mtlkit.tasks import task_names
from mtlkit.weighting.base import GradientAggregator
from mtlkit.weighting.chain import create_method

__all__ = ["Architecture", "SingleTask", "task_outputs"]

Tasks = int | Sequence[Any] | Mapping[str, Any]
MethodLike = str | Mapping[str, Any] | Sequence[Any] | Part | GradientAggregator


def task_outputs(
    tasks: Tasks, outputs: int | Sequence[int] | Mapping[str, int] | None = None
) -> dict[str, int]:
    """Name and number of outputs of every task.

    A task's own size comes first: the value of a mapping ``{"seg": 13, "depth": 1}``, or the attribute
    ``outputs`` of a task object. ``outputs`` gives the size of the others: one for all, a list in
    task order, or a mapping by name. What nobody sizes has one output.
    """
    names = task_names(tasks)
    items: Iterable[Any] = tasks.values() if isinstance(tasks, Mapping) else names
    if not isinstance(tasks, int | Mapping):
        items = tasks
    own = [_own_outputs(name, item) for name, item in zip(names, items, strict=True)]
    if outputs is None or isinstance(outputs, int):
        others = dict.fromkeys(names, 1 if outputs is None else outputs)
    elif isinstance(outputs, Mapping):
        for name in outputs:
            if name not in names:
                raise unknown_name("task in outputs", str(name), names)
        others = {name: outputs.get(name, 1) for name in names}
    else:
        if len(outputs) != len(names):
            raise SpecError(f"outputs lists {len(outputs)} sizes for {len(names)} tasks; give one each")
        others = dict(zip(names, outputs, strict=True))
    sizes = {name: others[name] if size is None else size for name, size in zip(names, own, strict=True)}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SpecError(f"outputs of task {name!r} must be a whole number, 1 or more, not {size!r}")
    return sizes


def _own_outputs(name: str, item: Any) -> Any:
    if isinstance(item, str) or item is None:
        return None
    if isinstance(item, int | float):
        return item
    return getattr(item, "outputs", None)


class Architecture(nn.Module, ABC):
    """A network with a shared part and one part per task, which may be trained by any method.

    A subclass has two hooks: :meth:`encode` computes what the tasks share, :meth:`predict` computes one
    task's prediction from its view of that. Between the two, :meth:`forward` calls the method once.
    Keyword-only arguments of ``__init__`` are the options of the config string.

    Args:
        tasks: number of tasks, their names, ``{name: number of outputs}``, or objects with ``name``
            and ``outputs`` (see :func:`task_outputs`).
        outputs: number of outputs of the tasks that do not say it themselves.
        multi_input: every task has its own batch; ``forward`` takes ``{task: inputs}``.
    """

    name: ClassVar[str]
    """Name in the registry."""
    paper: ClassVar[str] = ""
    """Authors, title and venue."""
    year: ClassVar[int | None] = None

    method: GradientAggregator
    """How the tasks' gradients are merged at the features."""
    features: Features | None = None
    """Kind and size of what is forked, where it is known."""
    spec: str = ""
    """The config string that it was made from."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        outputs: int | Sequence[int] | Mapping[str, int] | None = None,
        multi_input: bool = False,
    ) -> None:
        super().__init__()
        self.outputs = task_outputs(tasks, outputs)
        self.tasks = tuple(self.outputs)
        self.multi_input = multi_input
        self._keys = _module_keys(self.tasks)
        self._forks = True
        self._auxiliary = _Terms()
        self._seen: tuple[torch.Size, torch.dtype] | None = None

    # What a subclass overrides

    @abstractmethod
    def encode(self, inputs: Any) -> Any:
        """What all tasks share: a tensor, or a nested list, tuple or dict of tensors, batch first."""

    @abstractmethod
    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """Prediction of one task from its view of the shared features."""

    def task_modules(self, task: str) -> Iterable[nn.Module | nn.Parameter]:
        """Modules and parameters that stand between the fork and the prediction of ``task``."""
        heads = self.heads
        assert isinstance(heads, nn.ModuleDict)
        return [heads[self._keys[task]]]

    # What a subclass calls

    def by_task(self, modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
        """Modules by task, under names that PyTorch accepts."""
        return nn.ModuleDict({self._keys[task]: module for task, module in modules.items()})

    @staticmethod
    def vector_features(size: int) -> Features:
        """What to put into ``features`` where (B, size) vectors are forked."""
        return Features("vector", size)

    def add_auxiliary(self, term: Tensor) -> None:
        """Add a term to :meth:`auxiliary_loss`, from within a forward pass."""
        self._auxiliary.add(term)

    def set_method(self, method: MethodLike) -> None:
        """Use another method; a method that rotates is told the size of the features.

        Raises:
            SpecError: if the method needs shared features and this network has none.
        """
        dim = None if self.features is None else self.features.dim
        if not isinstance(method, GradientAggregator):
            parts = methods.expand(method)
            if not self._forks and _need_features(parts):
                raise SpecError(self._no_features_message(format_spec(parts)))
            if self.features is not None and self.features.kind == "map":
                parts = [_by_channel(part) for part in parts]
            if self.features is not None and any(part.options.get("dim") == "flat" for part in parts):
                dim = self.features.flat_size
            method = list[Any](parts)
        built = create_method(method, self.tasks, feature_dim=dim)
        if built.needs_features and not self._forks:
            raise SpecError(self._no_features_message(str(built)))
        self.method = built

    # What a user calls

    def forward(self, inputs: Any) -> dict[str, Any]:
        """Predictions by task name."""
        if isinstance(inputs, Tensor) and not torch.compiler.is_compiling():
            self._seen = (inputs.shape[1:], inputs.dtype)
        self._auxiliary.begin(self.training and torch.is_grad_enabled())
        if self.multi_input:
            return self._forward_each(inputs)
        views = self._fork(self.encode(inputs))
        return {
            task: self.predict(task, view, inputs) for task, view in zip(self.tasks, views, strict=True)
        }

    @property
    def example_input(self) -> Tensor | None:
        """Two samples of noise in the shape of the last input; None before the first forward."""
        if self._seen is None:
            return None
        shape, dtype = self._seen
        device = next((p.device for p in self.parameters()), None)
        drawn = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        return drawn.to(device, dtype)

    def only(self, task: str) -> SingleTask:
        """A module that computes the prediction of one task alone; the weights are shared with it."""
        return SingleTask(self, self._known(task))

    def head(self, task: str) -> nn.Module:
        """The module that computes the prediction of ``task``."""
        assert isinstance(self.heads, nn.ModuleDict)
        return self.heads[self._keys[self._known(task)]]

    def task_parameters(self, task: str) -> Iterator[nn.Parameter]:
        """Parameters above the fork that compute the prediction of ``task`` and of no other."""
        seen: set[int] = set()
        for item in self.task_modules(self._known(task)):
            for parameter in [item] if isinstance(item, nn.Parameter) else item.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def shared_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters below the fork, whose gradients are merged; without those of the method."""
        apart = {id(p) for task in self.tasks for p in self.task_parameters(task)}
        apart |= {id(p) for p in self.method.parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in apart)

    def auxiliary_loss(self) -> Tensor | None:
        """Term of the last forward pass to add to ``method.total(losses)``; None where there is none.

        A term is handed out once: a second call gives None until the next forward pass.
        """
        return self._auxiliary.take()

    # How a pass is made

    def _fork(self, shared: Any) -> Sequence[Any]:
        return self.method(shared) if self._forks else [shared] * len(self.tasks)

    def _forward_each(self, inputs: Any) -> dict[str, Any]:
        """Own batch of every task: one pass of the shared part over all, then own rows."""
        if not isinstance(inputs, Mapping) or not inputs:
            raise UsageError(
                f"multi_input takes a mapping from task to inputs, not {type(inputs).__name__}; "
                f"for example {{{self.tasks[0]!r}: x}}"
            )
        for task in inputs:
            self._known(task)
        present = [task for task in self.tasks if task in inputs]
        sizes = [len(flatten_features(inputs[task])[0][0]) for task in present]
        views = self._fork(self.encode(_concatenate([inputs[task] for task in present], present)))
        predictions, start = {}, 0
        for task, size in zip(present, sizes, strict=True):
            view = _rows(views[self.tasks.index(task)], start, size)
            predictions[task] = self.predict(task, view, inputs[task])
            start += size
        return predictions

    def _forward_only(self, task: str, inputs: Any) -> Any:
        # not a training step of all tasks: gradients pass the fork as through any other layer
        self._auxiliary.begin(False)
        recording = self.method.training
        if recording:
            self.method.training = False
        try:
            view = self._fork(self.encode(inputs))[self.tasks.index(task)]
        finally:
            if recording:
                self.method.training = True
        return self.predict(task, view, inputs)

    def _known(self, task: str) -> str:
        if task not in self._keys:
            raise unknown_name("task", str(task), self.tasks)
        return task

    def _no_features_message(self, method: str) -> str:
        return (
            f"method {method!r} merges gradients at features that all tasks share, and {self.name} "
            f"has no such features; methods that work here: {', '.join(_methods_without_features())}"
        )


class SingleTask(nn.Module):
    """One task of an architecture: ``forward(x)`` gives its prediction and computes no other head."""

    def __init__(self, architecture: Architecture, task: str) -> None:
        super().__init__()
        self.architecture = architecture
        self.task = task
        self.training = architecture.training

    def forward(self, inputs: Any) -> Any:
        """The prediction of the task."""
        return self.architecture._forward_only(self.task, inputs)


class _Terms:
    """Auxiliary terms between a forward and its loss. They are not copied or saved with the module."""

    def __init__(self) -> None:
        self._recording = False
        self._term: Tensor | None = None

    def begin(self, recording: bool) -> None:
        self._recording = recording
        self._term = None

    def add(self, term: Tensor) -> None:
        if self._recording:
            self._term = term if self._term is None else self._term + term

    def take(self) -> Tensor | None:
        term, self._term = self._term, None
        return term

    def __deepcopy__(self, memo: Any) -> _Terms:
        return _Terms()

    def __reduce__(self) -> Any:
        return _Terms, ()


def _by_channel(part: Part) -> Part:
    """``rotate`` for maps, where it does not say otherwise."""
    return Part("rotate", {"dim": "channel", **part.options}) if part.name == "rotate" else part


def _need_features(parts: Iterable[Part]) -> bool:
    """Whether one of the parts forks the features or merges gradients other than by their sum."""
    classes = [methods.get(part.name) for part in parts]
    return any(
        "fork" in getattr(c, "_plays", ())
        or ("merge" in getattr(c, "_plays", ()) and not getattr(c, "is_plain_sum", False))
        for c in classes
    )


def _methods_without_features() -> list[str]:
    return [name for name in methods.names() if not _need_features(methods.expand(name))]


def _module_keys(tasks: Sequence[str]) -> dict[str, str]:
    """Keys for ``nn.ModuleDict``, which takes neither dots nor the names of its own attributes."""
    keys: dict[str, str] = {}
    taken = set(dir(nn.ModuleDict()))
    for task in tasks:
        key = task.replace(".", "_") or "_"
        while key in taken:
            key += "_"
        taken.add(key)
        keys[task] = key
    return keys


def _concatenate(batches: list[Any], tasks: list[str]) -> Any:
    flattened = [flatten_features(batch) for batch in batches]
    leaves = zip(*(found for found, _ in flattened), strict=True)
    try:
        return flattened[0][1]([torch.cat(parts) for parts in leaves])
    except (RuntimeError, ValueError) as error:
        shapes = {
            task: [tuple(leaf.shape[1:]) for leaf in found]
            for task, (found, _) in zip(tasks, flattened, strict=True)
        }
        raise UsageError(
            "with multi_input the shared part sees the batches of all tasks as one, so their samples "
            f"must have one shape; given: {shapes} ({error})"
        ) from None


def _rows(features: Any, start: int, size: int) -> Any:
    leaves, rebuild = flatten_features(features)
    return rebuild([leaf.narrow(0, start, size) for leaf in leaves])
