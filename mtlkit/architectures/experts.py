"""The common parts of mixtures of experts."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.architectures.backbones import as_vector, build_backbone, vector_size
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.features import Features
from mtlkit.architectures.heads import build_heads
from mtlkit.config import Count
from mtlkit.config.spec import parse_call
from mtlkit.errors import SpecError


class Expert(nn.Module):
    """A network that returns one vector per sample."""

    def __init__(self, net: nn.Module, flattens: bool) -> None:
        super().__init__()
        self.net = net
        self.flattens = flattens

    def forward(self, x: Any) -> Tensor:
        """Return vectors (B, d)."""
        return as_vector(self.net(x.flatten(1) if self.flattens else x))


class MixtureOfExperts(Architecture):
    """Base of architectures whose tasks mix the outputs of experts, each by its own gates.

    Args:
        expert: ``mlp(64)``, ``mlp(64, 32)``, or a backbone such as ``timm.resnet18``, which reads the
            inputs.
        backbone: shared network below experts and gates; without it they read the inputs.
        heads: ``linear``, ``mlp(50)``, a module, a factory, or a mapping from task to these.
        input_size: shape of one sample, needed without a backbone.
    """

    gates: nn.ModuleDict

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any = None,
        expert: Any = "mlp(64)",
        heads: Any = "linear",
        input_size: Count | Sequence[Count] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.backbone: nn.Module | None = None
        if backbone is not None:
            self.backbone, found = build_backbone(backbone, input_size=input_size)
            self.input_dim = vector_size(found, self.name)
        elif input_size is None:
            raise SpecError(
                f"{self.name} without a backbone reads the inputs themselves; give their size, "
                "for example input_size=10 or input_size=(1, 28, 28), or a backbone"
            )
        else:
            size = (input_size,) if isinstance(input_size, int) else tuple(input_size)
            self.input_dim = math.prod(size)
        self._expert_spec = expert
        self._input_size = input_size
        self._heads_spec = (heads,)  # a tuple, so that a module is not registered

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return the task's gate and head."""
        return [self.of_task(self.gates, task), self.head(task)]

    def make_experts(self, count: int, inputs: int | None = None) -> nn.ModuleList:
        """Make experts; ``inputs`` is the size of the vectors they read, if not the network's input."""
        return nn.ModuleList(self._make_expert(inputs) for _ in range(count))

    def finish(self, method: MethodLike) -> None:
        """Make heads on the mixtures of the experts made last, whose outputs the method forks."""
        (heads,) = self._heads_spec
        del self._heads_spec
        self.heads = self.by_task(build_heads(heads, self.expert_dim, self.outputs))
        self.features = Features("tokens", self.expert_dim)
        self.set_method(method)

    def _make_expert(self, inputs: int | None) -> Expert:
        """Make an expert and set ``expert_dim``, the number of its outputs."""
        spec = self._expert_spec
        if isinstance(spec, nn.Module):
            raise SpecError("expert must be a spec such as mlp(64) or timm.resnet18, not a module")
        part, input_size = parse_call(spec), self._input_size
        if is_mlp := part.name == "mlp":
            input_size = inputs or self.input_dim
        elif inputs is not None or self.backbone is not None:
            raise SpecError(
                f"expert {part.name} reads images, but here experts read vectors of features; use "
                "expert=mlp(...), or leave out the backbone"
            )
        net, found = build_backbone(part, input_size=input_size)
        self.expert_dim = vector_size(found, self.name)
        return Expert(net, flattens=is_mlp)

    def bottom(self, inputs: Any) -> Tensor | None:
        """Return the features (B, d) of the backbone; None without a backbone."""
        return None if self.backbone is None else as_vector(self.backbone(inputs))


def run_experts(experts: Any, x: Any) -> Tensor:
    """Return the outputs (B, n, d) of n experts."""
    return torch.stack([expert(x) for expert in experts], dim=1)


def mix(weights: Tensor, outputs: Tensor) -> Tensor:
    """Return (B, d) from weights (B, n) or (n,) and expert outputs (B, n, d)."""
    subscripts = "n,bnd->bd" if weights.dim() == 1 else "bn,bnd->bd"
    return torch.einsum(subscripts, weights.to(outputs.dtype), outputs)


def mix_all(weights: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """Return (B, d) from weights (B, n) of n experts in several groups (B, n_i, d), without a copy."""
    pieces = torch.split(weights, [group.shape[1] for group in groups], dim=1)
    first, *others = (mix(w, g) for w, g in zip(pieces, groups, strict=True))
    return sum(others, first)
