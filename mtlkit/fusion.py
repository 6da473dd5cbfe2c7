"""Deployment: a copy of a model without mtlkit in it, rotations folded into the heads."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from mtlkit.errors import UsageError
from mtlkit.junction import flatten_features
from mtlkit.weighting.base import GradientAggregator

__all__ = ["fuse"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@torch.no_grad()
def fuse(model: nn.Module, example: Any = None, *, tolerance: float = 1e-5) -> nn.Module:
    """A copy of ``model`` for inference in which the rotations cost nothing.

    The method is replaced by a plain fork, and each rotation is multiplied into the weight of its
    head's first layer where that is exact: a ``Linear`` on the rotated axis, or a convolution on rotated
    channels (a rotation of channels acts at every position alike, so it passes through any kernel and
    padding). Where it is not, the fork itself rotates, by an explicit product.

    The heads are found by a rule: the module that holds the method also holds a ``ModuleDict`` whose
    keys are the tasks, or a ``ModuleList`` of one module per task (if there are several, that named
    ``heads``), and head k is given the k-th of what ``method(features)`` returned. A head's first layer
    is its attribute ``first_layer``, or is found by ``torch.fx``; a head that cannot be traced, or
    shares its layer with another, is left as it is. With an ``example`` the rule is checked: heads for
    which folding changes the output are not folded.

    Args:
        model: a network that holds a method; it is not changed.
        example: an input of the model, or a tuple of its inputs, of at least two samples. Needed if
            the features are a list or dict of tensors; useful otherwise: the outputs are compared. An
            architecture of mtlkit that has run before makes one itself.
        tolerance: largest difference of outputs that is allowed, relative to the largest output.

    Returns:
        A module in eval mode without any object of mtlkit. It is ready for ``torch.export`` and ONNX.

    Raises:
        UsageError: if the model holds no method, or outputs differ.
    """
    if example is None:
        example = getattr(model, "example_input", None)  # an architecture remembers what it has seen
    inputs = example if isinstance(example, tuple) else (example,)
    folded = _fused(model, None if example is None else inputs, fold=True)
    if example is None:
        return folded
    expected = _outputs(copy.deepcopy(model).eval(), inputs)
    if _difference(expected, _outputs(folded, inputs)) <= tolerance:
        return folded
    unfolded = _fused(model, inputs, fold=False)
    difference = _difference(expected, _outputs(unfolded, inputs))
    if difference > tolerance:
        raise UsageError(
            f"the fused model's outputs differ by {difference:.1e} from the model's on the example; "
            "fuse needs a forward pass that is the same each time and that gives the heads what "
            "method(features) returns"
        )
    return unfolded


def _fused(model: nn.Module, inputs: tuple[Any, ...] | None, *, fold: bool) -> nn.Module:
    model = copy.deepcopy(model).eval()
    if isinstance(model, GradientAggregator):
        raise UsageError("fuse takes the model that holds the method, not the method itself")
    holders = _holders(model)
    if not holders:
        raise UsageError("the model holds no method; there is nothing to fuse")
    features = _recorded_features(model, inputs)
    for method, places in holders:
        owner, _ = places[0]
        fork = _fork_in_place_of(method, owner, model, features.get(id(method)), fold)
        for holder, name in places:
            setattr(holder, name, fork)
    return _without_own_classes(model, inputs)


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


def _recorded_features(model: nn.Module, inputs: tuple[Any, ...] | None) -> dict[int, Any]:
    """What each method is given when the model sees the example."""
    if inputs is None:
        return {}
    features: dict[int, Any] = {}

    def record(module: nn.Module, given: tuple[Any, ...]) -> None:
        features[id(module)] = given[0]

    handles = [
        module.register_forward_pre_hook(record)
        for module in model.modules()
        if isinstance(module, GradientAggregator)
    ]
    model(*inputs)
    for handle in handles:
        handle.remove()
    return features


def _fork_in_place_of(
    method: GradientAggregator, owner: nn.Module, model: nn.Module, features: Any, fold: bool
) -> nn.Module:
    """A module that gives every task its features, rotated unless the rotation went into the head."""
    rotate: Any = method.fork_part
    if rotate is None:
        return _fork(len(method.tasks), {}, None, features)
    rotations = dict(enumerate(rotate.rotations))
    if fold and (features is None or isinstance(features, Tensor)):
        heads = _heads(owner, method.tasks)
        for task, head in heads.items():
            layer = _first_layer(head)
            pools = layer is not None and layer is getattr(head, "first_layer", None)
            if layer is None or not _is_own(layer, model):
                continue
            if _acts_on(layer, rotate, features) or (pools and rotate.dim in (1, "channel")):
                _fold(layer, rotations.pop(task))
    return _fork(len(method.tasks), rotations, rotate, features)


def _heads(owner: nn.Module, tasks: Sequence[str]) -> dict[int, nn.Module]:
    """The head of every task, by the rule of :func:`fuse`; none if the rule does not apply."""
    candidates: dict[str, dict[int, nn.Module]] = {}
    for name, child in owner.named_children():
        if isinstance(child, nn.ModuleDict) and set(child.keys()) == set(tasks):
            candidates[name] = {k: child[task] for k, task in enumerate(tasks)}
        elif isinstance(child, nn.ModuleList) and len(child) == len(tasks):
            candidates[name] = dict(enumerate(child))
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    return candidates.get("heads", {})


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


def _acts_on(layer: nn.Module, rotate: Any, features: Tensor | None) -> bool:
    """Whether the layer is linear in the axis that is rotated."""
    plain = features is not None and features.dim() == 2
    last = rotate.dim == -1 or (plain and rotate.dim in (1, "channel", "flat"))
    if type(layer) is nn.Linear:
        return last and layer.in_features >= rotate.side
    if type(layer) in _CONVOLUTIONS:
        groups: Any = layer.groups
        return rotate.dim in (1, "channel") and groups == 1
    return False


def _fold(layer: nn.Module, rotation: Tensor) -> None:
    """``W <- W R`` along the inputs that are rotated."""
    weight: Any = layer.weight
    side = len(rotation)
    head = weight[:, :side].to(torch.promote_types(weight.dtype, rotation.dtype))
    weight[:, :side] = torch.einsum("oi...,ij->oj...", head, rotation.to(head)).to(weight.dtype)


def _fork(tasks: int, rotations: Mapping[int, Tensor], rotate: Any, features: Any) -> nn.Module:
    """A graph module: its class is made by torch.fx, so that nothing of mtlkit stays in the model."""
    root = nn.Module()
    graph = fx.Graph()
    given = graph.placeholder("features")
    path = _path_to_leaf(features, rotate.leaf) if rotations and features is not None else []
    leaf = given
    for key in path:
        leaf = graph.call_function(operator.getitem, (leaf, key))
    views: list[Any] = [given] * tasks
    for task, rotation in rotations.items():
        name = f"rotation_{task}"
        root.register_buffer(name, rotation.clone())
        turned = _rotated(graph, leaf, graph.get_attr(name), rotate, len(rotation))
        views[task] = _put(graph, given, features, path, turned)
    graph.output(views)
    return fx.GraphModule(root, graph, "Fork")


def _rotated(graph: fx.Graph, leaf: fx.Node, rotation: fx.Node, rotate: Any, side: int) -> fx.Node:
    def call(name: str, *args: Any) -> fx.Node:
        return graph.call_method(name, args)

    axis = 1 if rotate.dim == "channel" else rotate.dim
    if rotate.dim == "flat":
        flat = call("flatten", leaf, 1)
    else:
        flat = leaf if axis == -1 else call("movedim", leaf, axis, -1)
    dtype = graph.call_function(getattr, (leaf, "dtype"))
    matrix = call("to", call("transpose", rotation, 0, 1), dtype)
    first: Any = (Ellipsis, slice(None, side))
    head = graph.call_function(operator.getitem, (flat, first))
    turned = graph.call_function(torch.matmul, (head, matrix))
    if rotate.size is not None:
        others: Any = (Ellipsis, slice(side, None))
        rest = graph.call_function(operator.getitem, (flat, others))
        turned = graph.call_function(torch.cat, ([turned, rest], -1))
    if rotate.dim == "flat":
        return call("view_as", turned, leaf)
    return turned if axis == -1 else call("movedim", turned, -1, axis)


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


def _put(graph: fx.Graph, node: fx.Node, features: Any, path: Sequence[Any], value: fx.Node) -> Any:
    """The features with the tensor at ``path`` exchanged."""
    if not path:
        return value
    keys = list(features) if isinstance(features, Mapping) else list(range(len(features)))
    items = {}
    for key in keys:
        item = graph.call_function(operator.getitem, (node, key))
        items[key] = _put(graph, item, features[key], path[1:], value) if key == path[0] else item
    if isinstance(features, Mapping):
        return items
    return tuple(items.values()) if isinstance(features, tuple) else list(items.values())


class _Tracer(fx.Tracer):
    """Goes through mtlkit's own modules and leaves all others whole."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        # the fork is gone through too, so that the network's forward may unpack what it returns
        return not (_is_ours(module) or isinstance(module, fx.GraphModule))


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "mtlkit"


def _without_own_classes(model: nn.Module, inputs: tuple[Any, ...] | None) -> nn.Module:
    """The same network as a graph of torch's modules, if it is made of mtlkit's."""
    if _is_ours(model):
        return _traced(model, inputs)
    for name, child in list(model.named_children()):
        if any(map(_is_ours, child.modules())):
            setattr(model, name, _without_own_classes(child, None))
    return model.eval()


def _traced(model: nn.Module, inputs: tuple[Any, ...] | None) -> nn.Module:
    """By torch.fx, which needs no input; where a forward looks at shapes, by torch.export."""
    name = type(model).__name__
    try:
        return fx.GraphModule(model, _Tracer().trace(model), name).eval()
    except Exception as error:  # whatever a forward does with a proxy
        if inputs is None:
            raise UsageError(
                f"{name} looks at the shapes of its input, so fuse needs one: fuse(model, example) with "
                "an example of at least two samples, or run the model once before"
            ) from error
    batches = tuple(_dynamic_batch(given) for given in inputs)
    try:
        graph = torch.export.export(model, inputs, dynamic_shapes=batches).module()
    except Exception as error:
        raise UsageError(f"{name} cannot be written as a graph of torch modules: {error}") from error
    graph.training = False
    return graph


def _dynamic_batch(given: Any) -> Any:
    """The first axis of every tensor may have another length than in the example."""
    if isinstance(given, Tensor):
        return {0: torch.export.Dim.AUTO}
    if isinstance(given, Mapping):
        return {key: _dynamic_batch(item) for key, item in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(_dynamic_batch(item) for item in given)
    return None


def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    tensors, _ = flatten_features(model(*inputs))
    return [tensor.detach() for tensor in tensors]


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """Largest difference, relative to the largest output."""
    if len(expected) != len(found):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.numel() and one.is_floating_point():
            size = max(float(one.abs().max()), 1e-12)
            worst = max(worst, float((one - other).abs().max()) / size)
    return worst
