"""Heads: from a task's features to its prediction.

=====================================  ==============================================================
spec                                   what it makes
=====================================  ==============================================================
``linear``                             one linear layer
``mlp(50)``, ``mlp(hidden=[64, 32])``  linear layers, ReLU between; ``norm=batch|layer``, ``dropout=p``
``conv``, ``conv(64, upsample=4)``     a prediction per pixel: 3x3 convolutions, then a 1x1 convolution
``identity``                           the features themselves
=====================================  ==============================================================

``output=sigmoid|softmax|log_softmax|softplus|relu|tanh|unit`` is applied last, and
``pool=avg|max|first|none`` turns tokens and maps into a vector before ``linear`` and ``mlp``. In Python
a head may also be a module, which is copied for every task, or a factory that is called with the number
of features and of outputs, such as ``nn.Linear``. A mapping from task to head sets them one by one.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from mtlkit.architectures.features import last_leaf
from mtlkit.config import Count, Ge, Lt
from mtlkit.config.registry import check_names, check_options
from mtlkit.config.spec import Part, parse_call, refuse_arguments
from mtlkit.errors import SpecError, unknown_name

Pool = Literal["avg", "max", "first", "none"]
Norm = Literal["none", "batch", "layer"]
Output = Literal["none", "sigmoid", "softmax", "log_softmax", "softplus", "relu", "tanh", "unit"]

_OUTPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": lambda x: x.sigmoid(),
    "softmax": lambda x: x.softmax(dim=1),
    "log_softmax": lambda x: x.log_softmax(dim=1),
    "softplus": F.softplus,
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
    "unit": lambda x: F.normalize(x, dim=1),
}
_NORMS: dict[str, Callable[[int], list[nn.Module]]] = {
    "none": lambda size: [],
    "batch": lambda size: [nn.BatchNorm1d(size)],
    "layer": lambda size: [nn.LayerNorm(size)],
}


class Head(nn.Module):
    """Pooling, then ``layers``, then an output function; it reads the last level of a pyramid.

    ``layers[0]`` is the layer that reads the features.
    """

    def __init__(self, layers: nn.Sequential, pool: Pool = "none", output: Output = "none") -> None:
        super().__init__()
        self.layers = layers
        self.pool = pool
        self.output = output

    def forward(self, features: Any) -> Tensor:
        """Return the prediction."""
        return _OUTPUTS[self.output](self.layers(pooled(last_leaf(features), self.pool)))

    @property
    def first_layer(self) -> nn.Module | None:
        """The layer into which a rotation of the features can be folded; None after max-pooling."""
        return None if self.pool == "max" or not len(self.layers) else self.layers[0]

    def extra_repr(self) -> str:
        """Return the options that the layers do not show."""
        return f"pool={self.pool}, output={self.output}"


def pooled(x: Tensor, how: str) -> Tensor:
    """Return (B, d) from tokens (B, T, d) or maps (B, d, H, W); vectors are unchanged."""
    if how == "none" or x.dim() == 2:
        return x
    if how == "first":
        return x[:, 0] if x.dim() == 3 else x[:, :, 0, 0]
    axes = (1,) if x.dim() == 3 else tuple(range(2, x.dim()))
    return x.mean(axes) if how == "avg" else x.amax(axes)


def layer_sizes(sizes: Sequence[int], hidden: int | Sequence[int]) -> list[int]:
    """Join sizes by position, as in ``mlp(64, 32)``, and by name, as in ``mlp(hidden=[64, 32])``."""
    found = [*sizes, *([hidden] if isinstance(hidden, int) else hidden)]
    if not all(isinstance(size, int) and size > 0 for size in found):
        raise SpecError(f"sizes of layers must be integers, 1 or more, not {found}")
    return found


def make_mlp(
    sizes: Sequence[int], *, norm: Norm = "none", dropout: float = 0.0, last: bool = False
) -> nn.Sequential:
    """Make linear layers with ReLU between them; ``last`` adds a ReLU after the last one."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        if index < len(sizes) - 2 or last:
            layers += [*_NORMS[norm](outputs), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


def _linear(features: int, outputs: int, *, pool: Pool = "avg", output: Output = "none") -> Head:
    return Head(nn.Sequential(nn.Linear(features, outputs)), pool, output)


def _mlp(
    features: int,
    outputs: int,
    *hidden_sizes: int,
    hidden: int | Sequence[int] = (),
    norm: Norm = "none",
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
    pool: Pool = "avg",
    output: Output = "none",
) -> Head:
    sizes = layer_sizes(hidden_sizes, hidden)
    if not sizes:
        raise SpecError("head mlp needs the size of its hidden layer, for example mlp(50)")
    layers = make_mlp([features, *sizes, outputs], norm=norm, dropout=dropout)
    return Head(layers, pool, output)


def _conv(
    features: int,
    outputs: int,
    *hidden_sizes: int,
    hidden: int | Sequence[int] = (),
    upsample: Count = 1,
    output: Output = "none",
) -> Head:
    sizes = [features, *layer_sizes(hidden_sizes, hidden)]
    layers: list[nn.Module] = []
    for inputs, size in pairwise(sizes):
        layers += [nn.Conv2d(inputs, size, 3, padding=1), nn.ReLU()]
    layers.append(nn.Conv2d(sizes[-1], outputs, 1))
    if upsample != 1:
        layers.append(nn.Upsample(scale_factor=upsample, mode="bilinear", align_corners=False))
    return Head(nn.Sequential(*layers), "none", output)


def _identity(features: int, outputs: int, *, output: Output = "none") -> Head:
    return Head(nn.Sequential(), "none", output)


_HEADS: dict[str, Callable[..., Head]] = {
    "linear": _linear,
    "mlp": _mlp,
    "conv": _conv,
    "identity": _identity,
}


def build_heads(heads: Any, features: int | None, outputs: Mapping[str, int]) -> dict[str, nn.Module]:
    """Make one head per task from a spec, a module, a factory, or a mapping or list of these.

    A task that the mapping lacks gets a linear head.
    """
    if isinstance(heads, nn.ModuleDict):
        heads = dict(heads.items())
    if isinstance(heads, Sequence | nn.ModuleList) and not isinstance(heads, str):
        if len(heads) != len(outputs):
            raise SpecError(f"{len(heads)} heads for {len(outputs)} tasks; give one for each task")
        heads = dict(zip(outputs, heads, strict=True))
    if not isinstance(heads, Mapping) or "name" in heads:
        return {task: _build(heads, features, size, copies=True) for task, size in outputs.items()}
    for task in heads:
        if task not in outputs:
            raise unknown_name("task in heads", str(task), outputs)
    return {t: _build(heads.get(t, "linear"), features, n, copies=False) for t, n in outputs.items()}


def _build(head: Any, features: int | None, outputs: int, *, copies: bool) -> nn.Module:
    if isinstance(head, nn.Module):
        return copy.deepcopy(head) if copies else head
    if isinstance(head, str | Mapping | Part):
        part = parse_call(head)
        factory = _HEADS.get(part.name)
        if factory is None:
            raise unknown_name("head", part.name, _HEADS)
        check_names(factory, part.options, of=f"head {part.name}")
        check_options(factory, part.options, of=f"head {part.name}")
        if part.name not in ("mlp", "conv"):
            refuse_arguments(part, of=f"head {part.name}")
        if features is None and part.name != "identity":
            raise SpecError(
                f"head {part} needs the number of features, which the backbone does not declare; give "
                "it an attribute num_features, or give the option features=d or input_size=(C, H, W)"
            )
        return factory(features or 0, outputs, *part.arguments, **part.options)
    if callable(head):
        built = head(features, outputs)
        if not isinstance(built, nn.Module):
            raise SpecError(f"the head factory returned {type(built).__name__}; expected a module")
        return built
    raise SpecError(
        f"cannot make a head from {type(head).__name__}; give {', '.join(_HEADS)}, a module, a factory "
        "called with the numbers of features and outputs, or a mapping from task to these"
    )
