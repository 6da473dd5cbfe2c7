"""MTAN: task-specific attention on every level of a shared network."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtlkit.architectures.backbones import build_backbone
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.heads import build_heads
from mtlkit.config import Count, register_architecture
from mtlkit.errors import SpecError

Norm = Literal["batch", "group", "none"]


def _norm(kind: Norm, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(1, channels) if kind == "group" else nn.Identity()


class _Attention(nn.Module):
    r"""The attention network of one task, over all levels.

    On level :math:`l` with shared map :math:`p^l`, the mask is
    :math:`a^l = h^l(g^l([p^l;\, f^l(\hat a^{l-1})]))` and :math:`\hat a^l = a^l \odot p^l`.
    """

    def __init__(self, channels: Sequence[int], reduction: int, norm: Norm) -> None:
        super().__init__()
        self.masks = nn.ModuleList()
        self.carries = nn.ModuleList()
        for level, width in enumerate(channels):
            inner = max(1, width // reduction)
            given = width if level == 0 else 2 * width
            self.masks.append(
                nn.Sequential(
                    nn.Conv2d(given, inner, 1),
                    _norm(norm, inner),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(inner, width, 1),
                    _norm(norm, width),
                    nn.Sigmoid(),
                )
            )
            if level:
                self.carries.append(
                    nn.Sequential(
                        nn.Conv2d(channels[level - 1], width, 3, padding=1),
                        _norm(norm, width),
                        nn.ReLU(inplace=True),
                    )
                )

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        attended: Tensor = self.masks[0](pyramid[0]) * pyramid[0]
        for level in range(1, len(pyramid)):
            shared = pyramid[level]
            carried = self.carries[level - 1](attended)
            if carried.shape[-2:] != shared.shape[-2:]:
                carried = F.adaptive_max_pool2d(carried, shared.shape[-2:])
            mask = self.masks[level](torch.cat([shared, carried], dim=1))
            attended = mask * shared
        return attended


@register_architecture("mtan")
class Mtan(Architecture):
    """Multi-task attention network on the feature pyramid of any timm model.

    Every task selects from the shared map of each level by a soft mask, computed from that map and from
    what it selected one level before. The levels are those of timm's ``features_only``. The paper reads
    two maps within each block of its SegNet or ResNet; here both are the output of the level. The whole
    pyramid is forked, and its gradients are merged jointly.

    Args:
        backbone: ``timm.<model>(...)``, or a module that returns a list of maps, finest first.
        heads: head of every task on the last level's selection: ``linear``, ``mlp(50)``, or
            ``conv(64, upsample=32)`` for dense prediction.
        reduction: factor by which the hidden layer of a mask is narrower than its map.
        norm: normalization of the attention layers: ``batch``, ``group`` or ``none``.
        input_size: shape of one sample, to find the levels of a backbone module.
    """

    paper = "Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, CVPR 2019"
    year = 2019

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any = "timm.resnet18",
        heads: Any = "linear",
        reduction: Count = 4,
        norm: Norm = "batch",
        input_size: Sequence[Count] | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.backbone, self.features = build_backbone(
            backbone, input_size=input_size, features_only=True
        )
        if self.features is None or self.features.kind != "map" or not self.features.channels:
            raise SpecError(
                "mtan needs a backbone that returns a list of maps: timm.<model>, or a module together "
                "with input_size=(C, H, W)"
            )
        channels = self.features.channels
        self.attention = self.by_task(
            {task: _Attention(channels, reduction, norm) for task in self.tasks}
        )
        self.heads = self.by_task(build_heads(heads, self.features.dim, self.outputs))
        self.set_method(method)

    def encode(self, inputs: Any) -> list[Tensor]:
        """Return the pyramid, finest level first."""
        return list(self.backbone(inputs))

    def predict(self, task: str, shared: list[Tensor], inputs: Any) -> Any:
        """Return the head's output on what the task selects."""
        return self.head(task)(self.of_task(self.attention, task)(shared))

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return attention and head."""
        return [self.of_task(self.attention, task), self.head(task)]
