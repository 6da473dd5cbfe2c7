"""Deployment: a copy of a model without mtlkit in it, rotations folded into the heads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from mtlkit.deployment.tracing import is_own_class, traced, uncompiled_copy
from mtlkit.engine.features import flatten_features
from mtlkit.errors import UsageError
from mtlkit.method.aggregator import GradientAggregator

_ROUNDINGS = 8
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@torch.no_grad()
def fuse(model: nn.Module, example: Any = None, *, tolerance: float = 1e-5) -> nn.Module:
    """A copy of ``model`` for inference in which the rotations cost nothing.

    The method is replaced by a plain fork, and each rotation is multiplied into the weight of its
    head's first layer where that is exact: a ``Linear`` on the rotated axis, or a convolution on rotated
    channels (a rotation of channels acts at every position alike, so it passes through any kernel and
    padding). Elsewhere the fork rotates by an explicit product, and a warning says for which task and
    why.

    With an ``example``, a head is the module that is given what ``method(features)`` returns for its
    task, and the outputs are compared: a head whose output changes is not folded. Without one, heads are
    found by name in the module that holds the method: a ``ModuleDict`` whose keys are the tasks, a
    ``ModuleList`` of one module per task (if there are several, the one named ``heads``), or attributes
    named ``<task>``, ``<task>_head`` or ``head_<task>``. A head's first layer is its attribute
    ``first_layer``, or is found by ``torch.fx``.

    Args:
        model: a network that holds a method; it is not changed.
        example: an input of the model, or a tuple of its inputs, of at least two samples. Needed if
            the features are a list or dict of tensors. An architecture of mtlkit that has run before
            makes one itself.
        tolerance: largest difference of outputs that is allowed, relative to the largest output.

    Returns:
        A module in eval mode without any object of mtlkit, but for classes of your own that inherit from
        its classes. It can be saved with ``torch.save``, takes inputs of other sizes wherever the model
        does, and is ready for ``torch.export`` and ONNX. If ``torch.compile`` was applied to the model,
        it is left out: compile the result.

    Raises:
        UsageError: if the model holds no method, or outputs differ.
    """
    if isinstance(model, GradientAggregator):
        raise UsageError("fuse takes the model that holds the method, not the method itself")
    if example is None:
        example = getattr(model, "example_input", None)  # an architecture remembers what it has seen
    if example is None:
        fused = _fused(model, None)
        fused.warn()
        return fused.model
    inputs = example if isinstance(example, tuple) else (example,)
    expected = _outputs(uncompiled_copy(model), inputs)

    def difference(fused: _Fused) -> float:
        return _difference(expected, _outputs(fused.model, inputs), tolerance)

    fused = _fused(model, inputs)
    if difference(fused) > tolerance:
        exact = [p for p in fused.folded if difference(_fused(model, inputs, [p])) <= tolerance]
        fused = _fused(model, inputs, exact)
    if (found := difference(fused)) > tolerance:
        raise UsageError(
            f"the fused model's outputs differ by {found:.1e} from the model's on the example; "
            "fuse needs a forward pass that is the same each time and that gives the heads what "
            "method(features) returns"
        )
    fused.warn()
    return fused.model


@dataclass
class _Fused:
    """A fused model, and for which task of which method the rotation was folded into the head."""

    model: nn.Module
    folded: list[tuple[int, int]] = field(default_factory=list)
    explicit: dict[str, str] = field(default_factory=dict)

    def warn(self) -> None:
        """Say which rotations are left, and why."""
        if self.explicit:
            reasons = "; ".join(f"{task}: {reason}" for task, reason in self.explicit.items())
            warnings.warn(
                f"fuse leaves {len(self.explicit)} rotation(s) as explicit products ({reasons})",
                UserWarning,
                stacklevel=4,
            )


def _fused(
    model: nn.Module, inputs: tuple[Any, ...] | None, allowed: Sequence[tuple[int, int]] | None = None
) -> _Fused:
    """Fold what can be folded; ``allowed`` limits it to these pairs of method and task."""
    model = uncompiled_copy(model)
    holders = _holders(model)
    if not holders:
        raise UsageError("the model holds no method; there is nothing to fuse")
    record = None if inputs is None else _Record(model, inputs)
    fused = _Fused(model)
    for index, (method, places) in enumerate(holders):
        owner, _ = places[0]
        features = None if record is None else record.features(method)
        rotations: dict[int, Tensor] = {}
        rotate: Any = method.fork_part
        if rotate is not None:
            rotations = dict(enumerate(_rotations(rotate)))
            heads = _named_heads(owner, method.tasks) if record is None else record.heads(method)
            for task, name in enumerate(method.tasks):
                reason = "folding it changes the output"
                if allowed is None or (index, task) in allowed:
                    layer = _foldable_layer(heads.get(task), rotate, features, model)
                    if isinstance(layer, nn.Module):
                        _fold(layer, rotations.pop(task))
                        fused.folded.append((index, task))
                        continue
                    reason = layer
                fused.explicit[name] = reason
        fork = traced(_Fork(len(method.tasks), rotations, rotate, features), None)
        for holder, name in places:
            setattr(holder, name, fork)
    fused.model = _without_own_classes(model, inputs, record)
    return fused


def _rotations(part: GradientAggregator) -> Tensor:
    try:
        return part.rotations
    except UsageError:
        raise UsageError(
            f"fuse can replace the fork of 'rotate' only, and {part} forks the features otherwise"
        ) from None


def _holders(model: nn.Module) -> list[tuple[GradientAggregator, list[tuple[nn.Module, str]]]]:
    """Every method of the model, with the modules and attribute names that hold it."""
    found: dict[int, tuple[GradientAggregator, list[tuple[nn.Module, str]]]] = {}
    methods: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        is_part = any(path.startswith(f"{method}.") for method in methods)
        if is_part or not isinstance(module, GradientAggregator):
            continue
        methods.append(path)
        parent, _, name = path.rpartition(".")
        holder = model.get_submodule(parent)
        if isinstance(holder, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            raise UsageError(
                f"the method is in a {type(holder).__name__}; keep it in an attribute of the "
                "module whose forward calls it, for example self.method"
            )
        found.setdefault(id(module), (module, []))[1].append((holder, name))
    return list(found.values())


class _Record:
    """Which modules ran on the example, and what they were given."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._calls: list[tuple[nn.Module, tuple[Any, ...]]] = []
        self._views: dict[nn.Module, Any] = {}

        def before(module: nn.Module, given: tuple[Any, ...]) -> None:
            self._calls.append((module, given))

        def after(module: nn.Module, given: tuple[Any, ...], views: Any) -> None:
            self._views[module] = views

        handles = [module.register_forward_pre_hook(before) for module in model.modules()]
        for module in model.modules():
            if isinstance(module, GradientAggregator):
                handles.append(module.register_forward_hook(after))
        model(*inputs)
        for handle in handles:
            handle.remove()

    def inputs(self, module: nn.Module) -> tuple[Any, ...] | None:
        """Arguments of the module's first call; None if it was not called."""
        return next((given for called, given in self._calls if called is module), None)

    def features(self, method: GradientAggregator) -> Any:
        """What the method forked."""
        given = self.inputs(method)
        return None if given is None else given[0]

    def heads(self, method: GradientAggregator) -> dict[int, nn.Module]:
        """By task, the only module that was given the task's view of the features."""
        heads = {}
        for task, view in enumerate(self._views.get(method, ())):
            readers: list[nn.Module] = []
            for module, given in self._calls:
                inside = any(module in reader.modules() for reader in readers)
                if given and given[0] is view and not inside:
                    readers.append(module)
            if len(readers) == 1:
                heads[task] = readers[0]
        return heads


def _named_heads(owner: nn.Module, tasks: Sequence[str]) -> dict[int, nn.Module]:
    """The head of every task by the names of modules; none if no rule of :func:`fuse` applies."""
    candidates: dict[str, dict[int, nn.Module]] = {}
    children = dict(owner.named_children())
    for name, child in children.items():
        if isinstance(child, nn.ModuleDict) and set(child.keys()) == set(tasks):
            candidates[name] = {k: child[task] for k, task in enumerate(tasks)}
        elif isinstance(child, nn.ModuleList) and len(child) == len(tasks):
            candidates[name] = dict(enumerate(child))
    for pattern in ("{}", "{}_head", "head_{}"):
        named = [children.get(pattern.format(task)) for task in tasks]
        if None not in named:
            candidates[pattern] = {k: head for k, head in enumerate(named) if head is not None}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    return candidates.get("heads", {})


def _foldable_layer(
    head: nn.Module | None, rotate: Any, features: Any, model: nn.Module
) -> nn.Module | str:
    """The layer that takes up the rotation, or the reason why there is none."""
    if not (features is None or isinstance(features, Tensor)):
        return "the features are several tensors"
    if head is None:
        return "no module was found that alone reads its features"
    layer = _first_layer(head)
    if layer is None:
        return f"the first layer of {type(head).__name__} was not found"
    if not _is_own(layer, model):
        return f"its first layer, {type(layer).__name__}, is parametrized or shared, or has no weight"
    if not _acts_on(layer, rotate, features, pools=layer is getattr(head, "first_layer", None)):
        return f"its first layer, {type(layer).__name__}, does not act on the rotated axis alone"
    return layer


def _first_layer(head: nn.Module) -> nn.Module | None:
    """The layer that alone is given the head's input, if it can be found."""
    if isinstance(head, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return head
    declared = getattr(head, "first_layer", None)
    if isinstance(declared, nn.Module):
        return declared
    try:
        graph = fx.Tracer().trace(head)
    except Exception:  # whatever a head's forward does with a proxy: it is not traceable
        return None
    node = next(node for node in graph.nodes if node.op == "placeholder")
    modules = dict(head.named_modules())
    while len(node.users) == 1:
        (node,) = node.users
        if node.op != "call_module":
            return None
        module = modules[str(node.target)]
        if not isinstance(module, _PASSES):
            calls = sum(other.target == node.target for other in graph.nodes)
            return module if calls == 1 and len(node.args) == 1 else None
    return None


def _is_own(layer: nn.Module, model: nn.Module) -> bool:
    """Whether nothing else in the model uses the layer or its weight."""
    weight = getattr(layer, "weight", None)
    if weight is None or parametrize.is_parametrized(layer):
        return False
    modules = sum(m is layer for _, m in model.named_modules(remove_duplicate=False))
    weights = sum(p is weight for _, p in model.named_parameters(remove_duplicate=False))
    return modules == 1 and weights == 1


def _acts_on(layer: nn.Module, rotate: Any, features: Tensor | None, *, pools: bool) -> bool:
    """Whether the layer is linear in the axis that is rotated; ``pools``: other axes may be averaged."""
    channels = rotate.dim in (1, "channel")
    if type(layer) is nn.Linear:
        plain = features is not None and features.dim() == 2
        last = rotate.dim == -1 or (plain and (channels or rotate.dim == "flat")) or (pools and channels)
        return last and layer.in_features >= rotate.side
    return isinstance(layer, _CONVOLUTIONS) and channels and layer.groups == 1


def _fold(layer: nn.Module, rotation: Tensor) -> None:
    """``W <- W R`` along the inputs that are rotated."""
    weight: Any = layer.weight
    side = len(rotation)
    head = weight[:, :side].to(torch.promote_types(weight.dtype, rotation.dtype))
    weight[:, :side] = torch.einsum("oi...,ij->oj...", head, rotation.to(head)).to(weight.dtype)


class _Fork(nn.Module):
    """The features of every task, rotated unless the rotation went into the head."""

    def __init__(self, tasks: int, rotations: Mapping[int, Tensor], rotate: Any, example: Any) -> None:
        super().__init__()
        self.tasks, self.rotate, self.example = tasks, rotate, example
        for task, rotation in rotations.items():
            self.register_buffer(f"rotation_{task}", rotation.clone())

    def forward(self, features: Any) -> list[Any]:
        views = []
        for task in range(self.tasks):
            rotation = getattr(self, f"rotation_{task}", None)
            views.append(features if rotation is None else self._view(features, rotation))
        return views

    def _view(self, features: Any, rotation: Tensor) -> Any:
        """The features with one of their tensors rotated."""

        def turned(given: Any, like: Any, path: list[Any]) -> Any:
            if not path:
                return self.rotate.axis.apply_one(rotation, given)
            # the example tells the structure, because what is traced has none
            keys = list(like) if isinstance(like, Mapping) else range(len(like))
            items = {key: given[key] for key in keys}
            items[path[0]] = turned(given[path[0]], like[path[0]], path[1:])
            return items if isinstance(like, Mapping) else type(like)(items.values())

        path = [] if self.example is None else _path_to_leaf(self.example, self.rotate.leaf)
        return turned(features, self.example, path)


def _path_to_leaf(features: Any, leaf: int) -> list[Any]:
    """Keys that lead to the rotated tensor of nested features."""
    if isinstance(features, Tensor):
        return []
    index = leaf % len(flatten_features(features)[0])
    keys = list(features) if isinstance(features, Mapping) else range(len(features))
    for key in keys:
        count = len(flatten_features(features[key])[0])
        if index < count:
            return [key, *_path_to_leaf(features[key], index)]
        index -= count
    raise AssertionError("the leaf is one of the tensors")


def _without_own_classes(
    model: nn.Module, inputs: tuple[Any, ...] | None, record: _Record | None
) -> nn.Module:
    """The same network with mtlkit's modules written as graphs of torch's."""
    if is_own_class(model):
        return traced(model, inputs)
    for name, child in list(model.named_children()):
        if any(map(is_own_class, child.modules())):
            given = None if record is None else record.inputs(child)
            setattr(model, name, _without_own_classes(child, given, record))
    return model.eval()


def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    tensors, _ = flatten_features(model(*inputs))
    return [tensor.detach() for tensor in tensors]


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> float:
    """Largest relative difference; infinite if whole numbers differ.

    Types narrower than float32 may differ by their rounding, so theirs is scaled down accordingly.
    """
    if len(expected) != len(found):
        return math.inf
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        known = one.isfinite()
        floating = one.is_floating_point()
        if not torch.equal(known, other.isfinite()) or not (floating or torch.equal(one, other)):
            return math.inf
        if floating and known.any():
            size = max(float(one[known].abs().max()), 1e-12)
            allowed = max(tolerance, _ROUNDINGS * torch.finfo(one.dtype).eps)
            worst = max(worst, float((one - other)[known].abs().max()) / size * tolerance / allowed)
    return worst
