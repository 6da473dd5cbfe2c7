"""Trace networks of mtlkit's classes as graphs of torch modules, and find heads in such graphs."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import fx, nn

from mtlkit.errors import UsageError


def is_own_class(module: nn.Module) -> bool:
    """Return whether the class of ``module`` is defined in mtlkit."""
    return type(module).__module__.partition(".")[0] == "mtlkit"


def uncompiled_copy(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode, without ``torch.compile`` around the model or its parts."""
    model = copy.deepcopy(model).eval()
    found: list[tuple[str, nn.Module]] = list(model.named_modules(remove_duplicate=False))
    # the innermost first, so that the other paths stay valid
    for path, inner in reversed(found):
        wrapper, _, name = path.rpartition(".")
        if name == "_orig_mod" and wrapper:
            holder, _, attribute = wrapper.rpartition(".")
            setattr(model.get_submodule(holder), attribute, inner)
        elif name == "_orig_mod":
            return inner
    return model


def traced(model: nn.Module, inputs: tuple[Any, ...] | None) -> nn.Module:
    """Return a network of mtlkit's classes as a graph of torch modules, for inputs of any size.

    Args:
        model: a network in eval mode.
        inputs: an example; needed if the forward pass reads the shapes of its inputs.
    """
    name = type(model).__name__
    try:
        found = _Tracer(inputs).trace(model)
    except Exception as error:  # tracing can fail in many ways
        if inputs is not None:
            raise UsageError(f"{name} cannot be written as a graph of torch modules: {error}") from error
        raise UsageError(
            f"{name} reads the shape of its input, so fuse needs one: fuse(model, example) with an "
            "example of at least two samples, or run the model once before"
        ) from error
    # a copy, because a traced graph is saved together with the class of its tracer
    graph = fx.Graph()
    graph.output(graph.graph_copy(found, {}))
    module = fx.GraphModule(model, graph, name)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module.eval()


class _Tracer(fx.Tracer):
    """Traces through mtlkit's own modules and keeps all others as they are.

    With an example, every node is computed when it is traced. Its value decides branches, and a list of
    tensors is traced as a list, so a forward pass may read numbers of dimensions and levels; sizes stay
    variable.
    """

    proxy_buffer_attributes = True  # otherwise what is computed from buffers alone becomes a constant

    def __init__(self, example: tuple[Any, ...] | None) -> None:
        super().__init__()
        self._example = None if example is None else iter(example)
        self._values: dict[fx.Node, Any] = {}
        self._computing = False

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        # the fork is traced too, because the forward pass may unpack what it returns
        return not (is_own_class(module) or isinstance(module, fx.GraphModule))

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **more: Any
    ) -> Any:
        proxy: Any = super().create_proxy(kind, target, args, kwargs, *others, **more)
        if self._example is None:
            return proxy
        value = self._compute(kind, target, args, kwargs)
        self._values[proxy.node] = value
        return proxy if kind == "placeholder" else self._opened(proxy)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        forward, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        if self._example is None:
            return forward, args

        @functools.wraps(forward)
        def opened(*given: Any) -> Any:
            return forward(*map(self._opened, given))

        return opened, args

    def _opened(self, given: Any) -> Any:
        """Return a proxy of a list or mapping as a list or mapping of proxies."""
        value: Any = self._values.get(given.node) if isinstance(given, fx.Proxy) else None
        if isinstance(value, Mapping):
            return {key: None if item is None else given[key] for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(None if v is None else given[i] for i, v in enumerate(value))
        return given

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Number(node, self)

    def value_of(self, proxy: fx.Proxy) -> Any:
        """Return the value of the node on the example."""
        return self._values[proxy.node]

    def to_bool(self, obj: fx.Proxy) -> bool:
        return super().to_bool(obj) if self._example is None else bool(self.value_of(obj))

    def iter(self, obj: Any) -> Iterator[Any]:
        if self._example is None:
            return super().iter(obj)
        return iter([obj[index] for index in range(len(self.value_of(obj)))])

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._computing:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def _compute(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        """Run one node on the values of its arguments."""
        assert self._example is not None

        def value_of(item: Any) -> Any:
            return self.value_of(item) if isinstance(item, fx.Proxy) else item

        given: Any = fx.node.map_aggregate(args, value_of)
        options: Any = fx.node.map_aggregate(kwargs, value_of)
        self._computing = True
        try:
            if kind == "placeholder":
                return next(self._example)
            if kind == "get_attr":
                return functools.reduce(getattr, target.split("."), self.root)
            if kind == "call_method":
                return operator.methodcaller(target, *given[1:], **options)(given[0])
            called = self.root.get_submodule(target) if kind == "call_module" else target
            return called(*given, **options)
        finally:
            self._computing = False


class _Number(fx.Proxy):
    """A proxy that can be used as a number or a sequence, whose value is then fixed in the graph."""

    def __int__(self) -> int:
        return int(self.tracer.value_of(self))  # type: ignore[attr-defined]

    def __index__(self) -> int:
        return operator.index(self.tracer.value_of(self))  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.tracer.value_of(self))  # type: ignore[attr-defined]


def find_heads(places: Sequence[tuple[nn.Module, str]], tasks: Sequence[str]) -> dict[int, nn.Module]:
    """Return by task the only module that directly reads the task's view of the features.

    The forward pass of the module that holds the method is traced, with one node per view; the result is
    empty if that fails. ``places`` are the modules and attribute names that hold the method, which is
    replaced.
    """
    if len(places) != 1:
        return {}
    ((holder, name),) = places
    setattr(holder, name, _Views(tasks))
    try:
        graph = _HolderTracer().trace(holder)
    except Exception:  # tracing can fail in many ways
        return {}
    called = [node.target for node in graph.nodes if node.op == "call_module"]
    views = [node for node in graph.nodes if node.target is _view]
    heads: dict[int, nn.Module] = {}
    for view in views:
        readers = list(view.users)
        direct = len(readers) == 1 and readers[0].target in called and readers[0].args == (view,)
        is_once = sum(other.args[1] == view.args[1] for other in views) == 1
        if direct and is_once and called.count(readers[0].target) == 1:
            heads[int(view.args[1])] = holder.get_submodule(readers[0].target)
    return heads


class _Views(nn.Module):
    """Replaces a method while the module that holds it is traced."""

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = tuple(tasks)  # as of the method, where a forward may read them

    def forward(self, features: Any) -> list[Any]:
        create = features.tracer.create_proxy
        places = range(len(self.tasks))
        return [create("call_function", _view, (features, task), {}) for task in places]


def _view(features: Any, task: int) -> Any:
    """Mark the view of a task in a traced graph, which is never run."""


class _HolderTracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return not isinstance(module, _Views)
