"""Networks, steps and comparisons that the laws of architectures are checked with."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward

from mtlkit.architectures import Architecture, create_architecture
from mtlkit.config.registry import architectures, option_defaults, option_names
from mtlkit.config.spec import Part
from mtlkit.engine.features import flatten_features
from mtlkit.errors import UsageError
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.state import State
from mtlkit.testing.cases import require


@dataclass(frozen=True)
class NetworkCase:
    """A network to build, and a batch for it."""

    architecture: str | type[Architecture]
    inputs: Any
    tasks: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, method: Any = "sum", **more: Any) -> Architecture:
        """Build the same network each time, in training mode."""
        torch.manual_seed(1)
        # a module among the options must not be shared by two networks
        options = copy.deepcopy({**self.options, **more})
        if isinstance(self.architecture, str):
            return create_architecture(self.architecture, self.tasks, method=method, **options)
        options["method"] = method
        return self.architecture(self.tasks, **options)

    def takes(self, option: str) -> bool:
        """Return whether the architecture has this option."""
        return option in option_names(self._part()[0])

    def needs_backbone(self) -> bool:
        """Return whether neither an option nor a default gives the backbone."""
        factory, given = self._part()
        default = option_defaults(factory).get("backbone", "none is needed")
        return default in (None, Parameter.empty) and given.keys().isdisjoint({"backbone", "input_size"})

    def _part(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the architecture's class, and all options that are given."""
        if not isinstance(self.architecture, str):
            return self.architecture, self.options
        (part,) = architectures.expand(self.architecture)
        return architectures.get(part.name), {**part.options, **self.options}


def fitting_inputs(net: Architecture) -> Tensor:
    """Return six samples of noise in the first common shape that the network accepts."""
    sizes: list[tuple[int, ...]] = []
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            sizes = [(layer.in_features,)]
        elif isinstance(layer, nn.Conv2d):
            pixels = ((28, 28), (32, 32), (64, 64), (32, 64), (224, 224))
            sizes = [(layer.in_channels, *size) for size in pixels]
        if sizes:
            break
    net = copy.deepcopy(net).eval()
    for size in sizes:
        inputs = torch.randn(6, *size)
        try:
            net(inputs)
        except Exception:  # a forward may fail in any way on another shape
            continue
        return inputs
    raise UsageError("no common input shape fits the network; pass check_architecture(inputs=...)")


class FirstTask(GradientAggregator):
    """Merge to three times the gradient of the first task."""

    name = "first_task"

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Return 3, 0, 0, ..."""
        weights = torch.zeros_like(gram[0])
        weights[0] = 3.0
        return weights, state


def merging_method(net: Architecture) -> str:
    """Name a method that does not merge by a sum, with rotations if possible."""
    if not net.forks:
        return "pcgrad(wrt=parameters)"
    return "pcgrad" if net.features is None else "rotograd"


def leaves_of(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in nested features or predictions."""
    return [leaf for leaf in flatten_features(value)[0] if leaf.is_floating_point()]


def size_of(prediction: Any) -> Tensor:
    """Return the mean squares, summed over the tensors of a prediction."""
    return torch.stack([leaf.square().mean() for leaf in leaves_of(prediction)]).sum()


def losses_of(net: Architecture, inputs: Any) -> dict[str, Tensor]:
    """Return losses with the same targets, and the same random numbers, in each call."""
    torch.manual_seed(3)
    losses = {}
    for index, (task, prediction) in enumerate(net(inputs).items()):
        generator = torch.Generator().manual_seed(index)
        errors = [
            leaf - torch.randn(leaf.shape, generator=generator).to(leaf)
            for leaf in leaves_of(prediction)
        ]
        losses[task] = size_of(errors)
    return losses


def total_of(net: Architecture, losses: dict[str, Tensor]) -> Tensor:
    """Return the objective of one step."""
    total, auxiliary = net.method.total(losses), net.auxiliary_loss()
    return total if auxiliary is None else total + auxiliary


def train(net: Architecture, inputs: Any, steps: int) -> list[float]:
    """Train, and return the sum of the losses before every step."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses = losses_of(net, inputs)
        backward(total_of(net, losses))
        history.append(sum(float(loss.detach()) for loss in losses.values()))
        optimizer.step()
    return history


def reached_by(net: Architecture, prediction: Any) -> set[str]:
    """Return the names of the parameters that get a gradient from a prediction."""
    net.zero_grad(set_to_none=True)
    size = size_of(prediction)
    if size.requires_grad:
        backward(size)
    return {name for name, parameter in net.named_parameters() if parameter.grad is not None}


def same_gradients(
    found: Iterable[tuple[str, nn.Parameter]], expected: Mapping[str, nn.Parameter]
) -> None:
    """Require equal gradients up to rounding, relative to the largest; None is zero."""
    pairs = [(name, p.grad, expected[name].grad) for name, p in found if p.requires_grad]
    scale = max((float(e.abs().max()) for _, _, e in pairs if e is not None), default=0.0)
    for name, gradient, wanted in pairs:
        one = torch.zeros(()) if gradient is None else gradient
        other = torch.zeros(()) if wanted is None else wanted
        difference = float((one - other).abs().max())
        what = f"the gradient of {name} differs by {difference:.1e} (the largest is {scale:.1e})"
        require(difference <= 1e-4 * scale, what)


def same_predictions(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Require equal predictions up to rounding."""
    for task, prediction in expected.items():
        for one, other in zip(leaves_of(found[task]), leaves_of(prediction), strict=True):
            shapes = tuple(one.shape), tuple(other.shape)
            require(shapes[0] == shapes[1], f"{task!r} has shape {shapes[0]}, not {shapes[1]}")
            difference = float((one - other).detach().abs().max())
            small = difference <= 1e-5 * max(1.0, float(other.detach().abs().max()))
            require(small, f"the prediction of {task!r} differs by {difference:.1e}")


def listed(names: set[str]) -> str:
    """Join the first names for a message."""
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def is_literal(value: Any) -> bool:
    """Return whether a config string can hold the value."""
    if isinstance(value, Mapping):
        return all(map(is_literal, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return value is None or isinstance(value, bool | int | float | str | Part)
