"""Fuse a model for deployment: a copy without mtlkit, with rotations folded into the heads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from mtlkit.deployment.tracing import find_heads, is_own_class, traced, uncompiled_copy
from mtlkit.engine.features import flatten_features
from mtlkit.errors import UsageError
from mtlkit.method.method import Method

_ROUNDINGS = 8
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@torch.no_grad()
def fuse(model: nn.Module, example: Any = None, *, tolerance: float = 1e-5) -> nn.Module:
    """Return a copy of ``model`` for inference in which the rotations cost nothing.

    The method is replaced by a plain fork, and each rotation is multiplied into the weight of its head's
    first layer if that is exact: a ``Linear`` on the rotated axis, or a convolution on rotated channels
    (the rotation is the same at every position, so it commutes with any kernel and padding). Otherwise
    the fork rotates by an explicit product, and a warning names the task and the reason.

    The head of a task is the only module that directly receives its view of the features. With an
    ``example``, calls are observed, and a rotation is not folded if that changes the output. Without
    one, ``torch.fx`` traces the forward pass of the module that holds the method; if that fails, the
    rotations stay explicit. The first layer of a head is its attribute ``first_layer``, or is found by
    ``torch.fx``.

    Args:
        model: a network that holds a method; it is not changed.
        example: an input of the model, or a tuple of its inputs, with at least two samples. Needed if
            the features are a list or dict of tensors. An architecture of mtlkit makes one automatically
            after its first forward pass.
        tolerance: largest allowed difference between outputs, relative to the largest output.

    Returns:
        A module in eval mode without objects of mtlkit, except for your own subclasses of its classes.
        It can be saved with ``torch.save``, accepts inputs of other sizes if the model does, and works
        with ``torch.export`` and ONNX. ``torch.compile`` is removed: compile the result.

    Raises:
        UsageError: if the model holds no method, or outputs differ.

    >>> import torch, mtlkit
    >>> net = mtlkit.create_architecture(
    ...     "hard_sharing(backbone=mlp(16, inputs=4))", {"a": 3, "b": 1}, method="rotograd"
    ... )
    >>> x = torch.randn(8, 4)
    >>> fused = mtlkit.fuse(net, x)
    >>> torch.allclose(fused(x)["a"], net.eval()(x)["a"], atol=1e-5)
    True
    >>> any("rotation" in name for name in fused.state_dict())
    False
    """
    if isinstance(model, Method):
        raise UsageError("fuse takes the model that holds the method, not the method")
    if example is None:
        example = getattr(model, "example_input", None)  # an architecture remembers its last input
    if example is None:
        fused = _fused(model, None)
    else:
        inputs = example if isinstance(example, tuple) else (example,)
        fused = _fused_exactly(model, inputs, tolerance)
    if fused.explicit:
        reasons = "; ".join(f"{task}: {reason}" for task, reason in fused.explicit.items())
        warnings.warn(
            f"fuse leaves {len(fused.explicit)} rotation(s) as explicit products ({reasons})",
            UserWarning,
            stacklevel=3,  # beyond the wrapper of no_grad
        )
    return fused.model


@dataclass
class _Fused:
    """A fused model, and the pairs of method and task whose rotation was folded into the head."""

    model: nn.Module
    folded: list[tuple[int, int]] = field(default_factory=list)
    explicit: dict[str, str] = field(default_factory=dict)


def _fused_exactly(model: nn.Module, inputs: tuple[Any, ...], tolerance: float) -> _Fused:
    """Fold all rotations for which the outputs stay the same."""
    expected = _outputs(uncompiled_copy(model), inputs)

    def agrees(fused: _Fused) -> bool:
        return _agree(expected, _outputs(fused.model, inputs), tolerance)

    fused = _fused(model, inputs)
    if agrees(fused):
        return fused
    exact = [pair for pair in fused.folded if agrees(_fused(model, inputs, [pair]))]
    fused = _fused(model, inputs, exact)
    if agrees(fused):
        return fused
    raise UsageError(
        "the fused model's outputs differ from the model's on the example; fuse needs a forward pass "
        "that is the same each time and that gives the heads what method(features) returns"
    )


def _fused(
    model: nn.Module, inputs: tuple[Any, ...] | None, allowed: Sequence[tuple[int, int]] | None = None
) -> _Fused:
    """Fold all possible rotations, or those of the ``allowed`` pairs of method and task."""
    model = uncompiled_copy(model)
    holders = _holders(model)
    if not holders:
        raise UsageError("the model holds no method; there is nothing to fuse")
    record = None if inputs is None else _Record(model, inputs)
    fused = _Fused(model)
    for index, (method, places) in enumerate(holders):
        features = None if record is None else record.features(method)
        rotations: dict[int, Tensor] = {}
        rotate: Any = method.forking
        if rotate is not None:
            rotations = dict(enumerate(_rotations(method)))
            heads = find_heads(places, method.tasks) if record is None else record.heads(method)
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
        plain = _Fork(len(method.tasks), rotations, rotate)
        fork: Any = traced(plain, None if features is None else (features,))
        fork.tasks = method.tasks  # a forward may pair them with the views
        for holder, name in places:
            setattr(holder, name, fork)
    fused.model = _without_own_classes(model, inputs, record)
    return fused


def _rotations(method: Method) -> Tensor:
    try:
        return method.rotations
    except UsageError:
        raise UsageError(
            f"fuse supports the fork of 'rotate' only, and {method} forks the features differently"
        ) from None


def _holders(model: nn.Module) -> list[tuple[Method, list[tuple[nn.Module, str]]]]:
    """Return every method of the model, with the modules and attribute names that hold it."""
    found: dict[int, tuple[Method, list[tuple[nn.Module, str]]]] = {}
    methods: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        is_part = any(path.startswith(f"{method}.") for method in methods)
        if is_part or not isinstance(module, Method):
            continue
        methods.append(path)
        parent, _, name = path.rpartition(".")
        holder = model.get_submodule(parent)
        if isinstance(holder, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            raise UsageError(
                f"the method is in a {type(holder).__name__}; make it an attribute of the module whose "
                "forward calls it, for example self.method"
            )
        found.setdefault(id(module), (module, []))[1].append((holder, name))
    return list(found.values())


class _Record:
    """The modules that ran on the example, with their arguments."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._calls: list[tuple[nn.Module, tuple[Any, ...]]] = []
        self._views: dict[nn.Module, Any] = {}

        def before(module: nn.Module, given: tuple[Any, ...]) -> None:
            self._calls.append((module, given))

        def after(module: nn.Module, given: tuple[Any, ...], views: Any) -> None:
            self._views[module] = views

        handles = [module.register_forward_pre_hook(before) for module in model.modules()]
        for module in model.modules():
            if isinstance(module, Method):
                handles.append(module.register_forward_hook(after))
        model(*inputs)
        for handle in handles:
            handle.remove()

    def inputs(self, module: nn.Module) -> tuple[Any, ...] | None:
        """Return the arguments of the module's first call; None if it was not called."""
        return next((given for called, given in self._calls if called is module), None)

    def features(self, method: Method) -> Any:
        """Return the features that the method forked."""
        given = self.inputs(method)
        return None if given is None else given[0]

    def heads(self, method: Method) -> dict[int, nn.Module]:
        """Return by task the only module that received the task's view of the features."""
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


def _foldable_layer(
    head: nn.Module | None, rotate: Any, features: Any, model: nn.Module
) -> nn.Module | str:
    """Return the layer into which the rotation can be folded, or the reason why there is none."""
    if not (features is None or isinstance(features, Tensor)):
        return "the features are several tensors"
    if head is None:
        return "no module was found that alone reads its features directly"
    layer = _first_layer(head)
    if layer is None:
        return f"the first layer of {type(head).__name__} was not found"
    if not _is_own(layer, model):
        return f"its first layer, {type(layer).__name__}, is parametrized or shared, or has no weight"
    if not _acts_on(layer, rotate, features, pools=layer is getattr(head, "first_layer", None)):
        return f"its first layer, {type(layer).__name__}, does not act on the rotated axis alone"
    return layer


def _first_layer(head: nn.Module) -> nn.Module | None:
    """Return the only layer that reads the head's input, if it can be found."""
    if isinstance(head, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return head
    declared = getattr(head, "first_layer", None)
    if isinstance(declared, nn.Module):
        return declared
    try:
        graph = fx.Tracer().trace(head)
    except Exception:  # tracing can fail in many ways
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
    """Return whether nothing else in the model uses the layer or its weight."""
    weight = getattr(layer, "weight", None)
    if weight is None or parametrize.is_parametrized(layer):
        return False
    modules = sum(m is layer for _, m in model.named_modules(remove_duplicate=False))
    weights = sum(p is weight for _, p in model.named_parameters(remove_duplicate=False))
    return modules == 1 and weights == 1


def _acts_on(layer: nn.Module, rotate: Any, features: Tensor | None, *, pools: bool) -> bool:
    """Return whether the layer is linear in the rotated axis; ``pools``: other axes may be averaged."""
    channels = rotate.dim in (1, "channel")
    if type(layer) is nn.Linear:
        plain = features is not None and features.dim() == 2
        last = rotate.dim == -1 or (plain and (channels or rotate.dim == "flat")) or (pools and channels)
        return last and layer.in_features >= rotate.side
    return isinstance(layer, _CONVOLUTIONS) and channels and layer.groups == 1


def _fold(layer: nn.Module, rotation: Tensor) -> None:
    """Set ``W <- W R`` along the rotated inputs."""
    weight: Any = layer.weight
    side = len(rotation)
    head = weight[:, :side].to(torch.promote_types(weight.dtype, rotation.dtype))
    weight[:, :side] = torch.einsum("oi...,ij->oj...", head, rotation.to(head)).to(weight.dtype)


class _Fork(nn.Module):
    """The features of every task, rotated unless the rotation is folded into the head."""

    def __init__(self, tasks: int, rotations: Mapping[int, Tensor], rotate: Any) -> None:
        super().__init__()
        self.tasks, self.rotate = tasks, rotate
        for task, rotation in rotations.items():
            self.register_buffer(f"rotation_{task}", rotation.clone())

    def forward(self, features: Any) -> list[Any]:
        views = []
        for task in range(self.tasks):
            rotation = getattr(self, f"rotation_{task}", None)
            views.append(features if rotation is None else self._view(features, rotation))
        return views

    def _view(self, features: Any, rotation: Tensor) -> Any:
        leaves, rebuild = flatten_features(features)
        place = self.rotate.feature_index % len(leaves)
        leaves[place] = self.rotate.axis.apply_one(rotation, leaves[place])
        return rebuild(leaves)


def _without_own_classes(
    model: nn.Module, inputs: tuple[Any, ...] | None, record: _Record | None
) -> nn.Module:
    """Return the same network with mtlkit's modules replaced by graphs of torch's modules."""
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


def _agree(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> bool:
    """Return whether outputs agree, relative to the largest one; integers must be equal.

    Dtypes narrower than float32 may differ by a few rounding errors.
    """
    try:
        for one, other in zip(expected, found, strict=True):
            allowed = 0.0
            if one.is_floating_point() and one.isfinite().any():
                largest = float(one[one.isfinite()].abs().max())
                allowed = largest * max(tolerance, _ROUNDINGS * torch.finfo(one.dtype).eps)
            torch.testing.assert_close(other, one, rtol=0, atol=allowed, equal_nan=True)
    except (AssertionError, ValueError):
        return False
    return True
