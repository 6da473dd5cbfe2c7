"""Backbones cut into stages, and networks of several that exchange features between stages."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.architectures.backbones import ChannelsFirst, build_backbone, measure_timm
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.features import Features, declared_features, measure_features
from mtlkit.architectures.heads import build_heads
from mtlkit.config import Count
from mtlkit.config.spec import Part, parse_call
from mtlkit.errors import SpecError


class StagedNets(Architecture):
    """Base of several nets, cut into stages, whose features are mixed between the stages.

    The features that a method forks are those of the last stages of all nets, joined to one tensor.

    Args:
        backbone: ``timm.<model>(...)``, ``mlp(64, 32, inputs=10)``, or an ``nn.Sequential`` of stages.
        heads: ``linear``, ``mlp(50)``, ``conv(64)``, a module, a factory, or a mapping from task to
            these.
        input_size: shape of one sample, if the backbone does not declare its features.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any = "timm.resnet18",
        heads: Any = "linear",
        input_size: Count | Sequence[Count] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self._given = backbone, heads, input_size  # a tuple, so that modules are not registered

    def make_nets(self, count: int) -> list[nn.ModuleList]:
        """Return the stages of every net."""
        backbone, _, input_size = self._given
        nets, self._found = build_stages(backbone, count, input_size)
        return nets

    def finish(self, forks: bool, method: MethodLike) -> None:
        """Make the heads, and set the method, which forks the features only if ``forks``."""
        found, (_, heads, _) = self._found, self._given
        del self._given
        self.heads = self.by_task(build_heads(heads, found.dim, self.outputs))
        self.forks = forks
        if forks:
            self.features = Features("tokens" if found.kind == "vector" else found.kind, found.dim)
        self.set_method(method)

    def join(self, streams: Sequence[Any]) -> Any:
        """Join the features of the nets, with the feature axis where it was, if they are forked.

        Vectors are stacked to (B, n, d); tokens are concatenated along the sequence and maps along the
        height. So a rotation of the feature axis is the same for every net.
        """
        if not self.forks:
            return streams
        if self._found.kind == "vector":
            return torch.stack(list(streams), dim=1)
        return torch.cat(list(streams), dim=1 if self._found.kind == "tokens" else 2)

    def split(self, shared: Any, count: int) -> Any:
        """Undo :meth:`join`."""
        if not self.forks:
            return shared
        if self._found.kind == "vector":
            return shared.unbind(1)
        return shared.chunk(count, dim=1 if self._found.kind == "tokens" else 2)


def weighted_sum(weights: Tensor, streams: Sequence[Tensor]) -> Tensor:
    """Return the sum of the streams, each times its weight."""
    first, *others = (w.to(s.dtype) * s for w, s in zip(weights, streams, strict=True))
    total: Tensor = sum(others, first)
    return total


def build_stages(
    backbone: Any, copies: int, input_size: int | Sequence[int] | None = None
) -> tuple[list[nn.ModuleList], Features]:
    """Return ``copies`` of a backbone as lists of their stages, and the features of the last stage.

    Copies of a spec are initialized independently; those of a module start from its weights.
    """
    if isinstance(backbone, nn.Module):
        nets = [_split(copy.deepcopy(backbone)) for _ in range(copies)]
    else:
        nets = [_split(_build(backbone, input_size)) for _ in range(copies)]
    return nets, _features(nets[0], backbone, input_size)


def _build(backbone: Any, input_size: Any) -> nn.Module:
    if isinstance(backbone, str | Mapping | Part):
        part = parse_call(backbone)
        if part.name.startswith("timm"):
            net, _ = build_backbone(part, features_only=True)
            if type(_inner(net)).__name__ == "FeatureGetterNet":
                net, _ = build_backbone(part, global_pool="", features_only=False)
            return net
    net, _ = build_backbone(backbone, input_size=input_size)
    return net


def _inner(net: nn.Module) -> nn.Module:
    """Return the timm model, without the wrapper that gives maps with channels first."""
    return net.model if isinstance(net, ChannelsFirst) else net


def _split(net: nn.Module) -> nn.ModuleList:
    inner = _inner(net)
    stages = _split_timm(inner)
    if stages is None and isinstance(inner, nn.Sequential):
        stages = _split_sequential(inner)
    if not stages:
        raise SpecError(
            f"cannot cut {type(inner).__name__} into stages; give an nn.Sequential whose children are "
            "the stages, or a timm model such as timm.resnet18, timm.convnext_atto or "
            "timm.vit_tiny_patch16_224"
        )
    if inner is not net:
        stages[-1] = ChannelsFirst(stages[-1])
    return nn.ModuleList(stages)


def _split_sequential(net: nn.Sequential) -> list[nn.Module]:
    """Start a stage at every child that has parameters and is not a normalization."""
    groups: list[list[nn.Module]] = []
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    for child in net:
        begins = any(True for _ in child.parameters()) and not isinstance(child, norms)
        if not groups or (begins and any(True for m in groups[-1] for _ in m.parameters())):
            groups.append([])
        groups[-1].append(child)
    return [nn.Sequential(*group) for group in groups]


def _split_timm(net: Any) -> list[nn.Module] | None:
    """Return the stages of a timm model: of its feature pyramid, or quarters of a transformer."""
    returned: Any = getattr(net, "return_layers", None)
    if isinstance(net, nn.ModuleDict) and returned is not None:
        groups: list[list[nn.Module]] = [[]]
        for name, module in net.items():
            groups[-1].append(module)
            if name in returned:
                groups.append([])
        return [nn.Sequential(*group) for group in groups if group]
    if hasattr(net, "conv_stem") and getattr(net, "feature_hooks", True) is None:
        returned = {stage["stage"] for stage in net.feature_info.get_dicts()}
        stem = [getattr(net, name) for name in ("conv_stem", "bn1", "act1") if hasattr(net, name)]
        groups = [stem]
        for index, block in enumerate(net.blocks):
            groups[-1].append(block)
            if index + 1 in returned and index + 1 < len(net.blocks):
                groups.append([])
        return [nn.Sequential(*group) for group in groups if group]
    if hasattr(net, "_pos_embed") and hasattr(net, "blocks") and hasattr(net, "norm"):
        blocks, norm = list(net.blocks), net.norm
        net.blocks, net.norm = nn.Sequential(), nn.Identity()
        size = max(1, -(-len(blocks) // 4))
        quarters = [blocks[start : start + size] for start in range(0, len(blocks), size)]
        stages: list[nn.Module] = [nn.Sequential(*quarter) for quarter in quarters]
        stages[0] = nn.Sequential(_Embed(net), *stages[0].children())
        stages[-1] = nn.Sequential(*stages[-1].children(), norm)
        return stages
    return None


class _Embed(nn.Module):
    """A vision transformer without blocks: image to tokens."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net.forward_features(x)


def _features(stages: nn.ModuleList, backbone: Any, input_size: Any) -> Features:
    net = nn.Sequential(*stages)
    if input_size is not None:
        return measure_features(net, input_size)
    part = None if isinstance(backbone, nn.Module) else parse_call(backbone)
    if part is None or not part.name.startswith("timm"):
        found = declared_features(net)
        if found is None:
            raise SpecError("the size of the last stage's output is unknown; give input_size=(C, H, W)")
        return found
    return measure_timm(net, part.options)
