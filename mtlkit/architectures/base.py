"""The abstract :class:`Architecture`: a shared part, a fork, and one part per task."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mtlkit.architectures.features import Features
from mtlkit.architectures.preference import Preference, WithPreference
from mtlkit.architectures.saving import Pretrained
from mtlkit.config import methods
from mtlkit.config.names import task_names
from mtlkit.config.registry import check_options
from mtlkit.config.spec import Part, format_spec
from mtlkit.engine.features import flatten_features
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.method.create import create_method
from mtlkit.method.groups import Groups
from mtlkit.method.method import Method

Tasks = int | Sequence[Any] | Mapping[str, Any]
MethodLike = str | Mapping[str, Any] | Sequence[Any] | Part | Method


def task_outputs(
    tasks: Tasks, outputs: int | Sequence[int] | Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the name and number of outputs of every task.

    A task's own size comes first: the value of a mapping ``{"seg": 13, "depth": 1}``, or the attribute
    ``outputs`` of a task object. ``outputs`` gives the size of the others: one for all, a list in
    task order, or a mapping by name. The default is one output.
    """
    names = task_names(tasks)
    if isinstance(tasks, Mapping):
        own = list(map(_own_outputs, tasks.values()))
    elif isinstance(tasks, int):
        own = [None] * tasks
    else:  # a name says nothing about a size
        own = [None if isinstance(item, str) else _own_outputs(item) for item in tasks]
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
            raise SpecError(f"outputs of task {name!r} must be an integer, 1 or more, not {size!r}")
    return sizes


def _own_outputs(item: Any) -> Any:
    return item if isinstance(item, int | float | str) else getattr(item, "outputs", None)


class Architecture(WithPreference, Pretrained, nn.Module, ABC):
    """A network with a shared part and one part per task, to be trained by any method.

    A subclass has two hooks: :meth:`encode` computes the shared features, and :meth:`predict` computes
    one task's prediction from its view of them, by default with the task's head. Between the two,
    :meth:`forward` calls the method once. Keyword-only arguments of ``__init__`` are the options of the
    config string.

    ``save_pretrained(folder)`` and ``push_to_hub(name)`` save a network that
    :func:`~mtlkit.create_architecture` made, weights and method included;
    ``Architecture.from_pretrained(folder_or_name)`` loads it in eval mode.

    Args:
        tasks: number of tasks, their names, ``{name: number of outputs}``, or objects with ``name``
            and ``outputs`` (see :func:`task_outputs`).
        outputs: number of outputs of the tasks that do not define it themselves.
        multi_input: every task has its own batch; ``forward`` takes ``{task: inputs}``.

    >>> import torch, mtlkit
    >>> class TwoLayers(mtlkit.Architecture):
    ...     def __init__(self, tasks, *, width: int = 8, method="sum"):
    ...         super().__init__(tasks)
    ...         self.encoder = torch.nn.Linear(4, width)
    ...         self.heads = self.by_task(
    ...             {task: torch.nn.Linear(width, size) for task, size in self.outputs.items()}
    ...         )
    ...         self.features = self.vector_features(width)
    ...         self.set_method(method)
    ...     def encode(self, inputs):
    ...         return self.encoder(inputs).relu()
    >>> net = TwoLayers({"kind": 3, "size": 1}, method="rotograd")
    >>> net(torch.randn(5, 4))["kind"].shape
    torch.Size([5, 3])
    >>> [sum(p.numel() for p in net.task_parameters(task)) for task in net.tasks]
    [27, 9]
    """

    name: ClassVar[str] = "this architecture"
    """Name in the registry."""
    paper: ClassVar[str] = ""
    """Authors, title and venue."""
    year: ClassVar[int | None] = None
    fork_hint: ClassVar[str] = ""
    """Advice in the error, for an architecture that forks only with some option."""
    waived_laws: ClassVar[Mapping[str, str]] = {}
    """Laws of :func:`mtlkit.testing.check_architecture` that do not apply, with the reason."""

    method: Method
    """The method that merges the tasks' gradients."""
    forks: bool = True
    """Whether all tasks read one set of shared features, which the method forks."""
    features: Features | None = None
    """Kind and size of the shared features, if known."""
    heads: nn.ModuleDict
    """The last module of every task, made by :meth:`by_task`."""
    spec: str = ""
    """The config string that the network was made from."""
    extra_capacity: Mapping[str, Any] | None = None
    """Options of :func:`~mtlkit.architectures.capacity.add_capacity`, if it was called."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the options, so that a class rejects what its config string rejects."""
        check_options(cls, options)
        made: Self = super().__new__(cls, *args, **options)
        return made

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
        self.preferences: Preference | None = None
        self._keys = _module_keys(self.tasks)
        self._auxiliary: Tensor | None = None
        self._records_auxiliary = False
        self._seen: tuple[torch.Size, torch.dtype] | None = None

    @abstractmethod
    def encode(self, inputs: Any) -> Any:
        """Return the shared features: a tensor, or a nested list, tuple or dict, batch first."""

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """Return the prediction of one task from its view of the shared features."""
        return self.head(task)(shared)

    def task_modules(self, task: str) -> Iterable[nn.Module | nn.Parameter]:
        """Return the modules and parameters that :meth:`predict` uses for ``task`` only."""
        return [self.head(task)]

    def by_task(self, modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
        """Return modules by task, under names that PyTorch accepts; :meth:`of_task` finds them."""
        return nn.ModuleDict({self._keys[task]: module for task, module in modules.items()})

    def of_task(self, modules: nn.Module, task: str) -> nn.Module:
        """Return the module of ``task`` in a result of :meth:`by_task`."""
        assert isinstance(modules, nn.ModuleDict)
        return modules[self._keys[self.check_task(task)]]

    def check_task(self, task: str) -> str:
        """Return ``task``, or raise an error that names the known tasks."""
        if task not in self.tasks:
            raise unknown_name("task", str(task), self.tasks)
        return task

    @staticmethod
    def vector_features(size: int) -> Features:
        """Return the value of ``features`` for shared vectors (B, size)."""
        return Features("vector", size)

    def add_auxiliary(self, term: Tensor) -> None:
        """Add a term to :meth:`auxiliary_loss`, from within a forward pass."""
        if self._records_auxiliary:
            self._auxiliary = term if self._auxiliary is None else self._auxiliary + term

    def set_method(self, method: MethodLike) -> None:
        """Use another method; one that rotates is given the size of the features.

        Raises:
            SpecError: if the method needs shared features and this network has none.
        """
        dim = None if self.features is None else self.features.dim
        if isinstance(method, Method):
            parts, needs_fork = method.spec, method.needs_fork
        else:
            parts = methods.expand(method)
            needs_fork = any(map(_needs_fork, parts))
        if not self.forks and needs_fork:
            hint = f"; or {self.fork_hint}" if self.fork_hint else ""
            raise SpecError(
                f"method {format_spec(parts)!r} works at features that all tasks share, and {self.name} "
                f"has none; write {format_spec(_without_fork(parts))!r}{hint}"
            )
        if not isinstance(method, Method):
            if self.features is not None and self.features.kind == "map":  # rotate the channels
                parts = [
                    Part(p.name, {"dim": "channel", **p.options}) if p.name == "rotate" else p
                    for p in parts
                ]
            if self.features is not None and any(part.options.get("dim") == "flat" for part in parts):
                dim = self.features.flat_size
            method = list[Any](parts)
        self.method = create_method(method, self.tasks, feature_dim=dim)
        merging = self.method.merging
        if merging is not None and merging.groups != "all":
            shared = {id(parameter) for parameter in self.shared_parameters()}
            named = [(name, p) for name, p in self.named_parameters() if id(p) in shared]
            self.method.set_shared(Groups.of_names(named, merging.groups).by_name)

    def forward(self, inputs: Any) -> dict[str, Any]:
        """Return predictions by task name."""
        if isinstance(inputs, Tensor) and not torch.compiler.is_compiling():
            self._seen = (inputs.shape[1:], inputs.dtype)
        self._auxiliary, self._records_auxiliary = None, self.training and torch.is_grad_enabled()
        if self.multi_input:
            return self._forward_each(inputs)
        views = self._fork(self.encode(inputs))
        return {
            task: self.predict(task, view, inputs) for task, view in zip(self.tasks, views, strict=True)
        }

    def forward_only(self, task: str, inputs: Any) -> Any:
        """Return the prediction of one task; gradients pass through the fork as through any layer."""
        self.check_task(task)
        self._auxiliary, self._records_auxiliary = None, False
        training = self.method.training
        self.method.training = False
        try:
            view = self._fork(self.encode(inputs))[self.tasks.index(task)]
        finally:
            self.method.training = training
        return self.predict(task, view, inputs)

    def only(self, task: str) -> "SingleTask":
        """Return a module that computes only this task's prediction, with the same weights."""
        return SingleTask(self, self.check_task(task))

    def head(self, task: str) -> nn.Module:
        """Return the last module of ``task``."""
        if not isinstance(getattr(self, "heads", None), nn.ModuleDict):
            raise UsageError(
                f"{type(self).__name__} has no heads: set self.heads = self.by_task({{...}}), or "
                "override task_modules(task)"
            )
        return self.of_task(self.heads, task)

    def task_parameters(self, task: str) -> Iterator[nn.Parameter]:
        """Return the parameters above the fork that only ``task`` uses."""
        found: dict[int, nn.Parameter] = {}
        for item in self.task_modules(self.check_task(task)):
            for parameter in [item] if isinstance(item, nn.Parameter) else item.parameters():
                found[id(parameter)] = parameter
        return iter(found.values())

    def shared_parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters below the fork, without those of the method."""
        apart = {id(p) for task in self.tasks for p in self.task_parameters(task)}
        apart |= {id(p) for p in self.method.parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in apart)

    def auxiliary_loss(self) -> Tensor | None:
        """Return the term of the last forward pass to add to ``method.total(losses)``, or None.

        Each term is returned once: a second call returns None until the next forward pass.
        """
        term, self._auxiliary = self._auxiliary, None
        return term

    @property
    def example_input(self) -> Tensor | None:
        """Two random samples in the shape of the last input; None before the first forward pass."""
        if self._seen is None:
            return None
        shape, dtype = self._seen
        device = next((p.device for p in self.parameters()), None)
        if not dtype.is_floating_point:  # ids, of which 0 is always valid
            return torch.zeros(2, *shape, dtype=dtype, device=device)
        drawn = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        return drawn.to(device, dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the auxiliary loss out of copies: it belongs to the graph of one forward pass."""
        return {**self.__dict__, "_auxiliary": None}

    def _fork(self, shared: Any) -> Sequence[Any]:
        return self.method(shared) if self.forks else [shared] * len(self.tasks)

    def _forward_each(self, inputs: Any) -> dict[str, Any]:
        """Run the shared part once over the batches of all tasks; each task reads its rows."""
        if not isinstance(inputs, Mapping) or not inputs:
            raise UsageError(
                f"multi_input takes a mapping from task to inputs, not {type(inputs).__name__}; "
                f"for example {{{self.tasks[0]!r}: x}}"
            )
        for task in inputs:
            self.check_task(task)
        present = [task for task in self.tasks if task in inputs]
        # not len, which would fix the sizes in an exported graph
        sizes = [flatten_features(inputs[task])[0][0].shape[0] for task in present]
        views = self._fork(self.encode(_concatenate([inputs[task] for task in present], present)))
        predictions, start = {}, 0
        for task, size in zip(present, sizes, strict=True):
            view = _rows(views[self.tasks.index(task)], start, size)
            predictions[task] = self.predict(task, view, inputs[task])
            start += size
        return predictions


class SingleTask(nn.Module):
    """One task of an architecture: ``forward(x)`` computes its prediction and no other head.

    Args:
        architecture: the network, whose weights are used.
        task: name of the task.
        named: return ``{task: prediction}``, as the Trainer expects, instead of the prediction.

    >>> import torch, mtlkit
    >>> net = mtlkit.create_architecture("hard_sharing(backbone=mlp(16, inputs=4))", {"a": 3, "b": 1})
    >>> net.only("a")(torch.randn(8, 4)).shape
    torch.Size([8, 3])
    """

    def __init__(self, architecture: Any, task: str, *, named: bool = False) -> None:
        super().__init__()
        self.architecture = architecture
        self.task = task
        self.named = named
        self.training = architecture.training

    def forward(self, inputs: Any) -> Any:
        """Return the prediction of the task."""
        prediction = self.architecture.forward_only(self.task, inputs)
        return {self.task: prediction} if self.named else prediction


def _has_role(part: Part, role: str) -> bool:
    return role in getattr(methods.get(part.name), "roles", ())


def _merges(part: Part) -> bool:
    """Return whether the part merges gradients other than by their sum."""
    return _has_role(part, "merge") and not getattr(methods.get(part.name), "is_plain_sum", False)


def _needs_fork(part: Part) -> bool:
    return _has_role(part, "fork") or (_merges(part) and part.options.get("wrt") != "parameters")


def _without_fork(parts: Iterable[Part]) -> list[Part]:
    """Return the nearest method that needs no fork: no rotations, gradients of parameters."""
    kept = [
        Part(part.name, {**part.options, "wrt": "parameters"}) if _merges(part) else part
        for part in parts
        if not _has_role(part, "fork")
    ]
    return kept or [Part("sum", {})]


def _module_keys(tasks: Sequence[str]) -> dict[str, str]:
    """Return keys for ``nn.ModuleDict``, which accepts neither dots nor its attributes' names."""
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
            "with multi_input the batches of all tasks are joined for the shared part, so their samples "
            f"must have the same shape; given: {shapes} ({error})"
        ) from None


def _rows(features: Any, start: int, size: int) -> Any:
    leaves, rebuild = flatten_features(features)
    return rebuild([leaf.narrow(0, start, size) for leaf in leaves])
