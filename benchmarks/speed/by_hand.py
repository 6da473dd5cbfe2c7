"""The networks of every architecture as a user writes them without mtlkit: plain modules.

Layers are declared in the order in which the architecture has them, so that :func:`share_weights` can
give both the same weights. ``forward`` returns the predictions in task order, and keeps a term that is
to be added to the sum of the losses, if there is one, in ``penalty``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "CelebaNet",
    "Cgc",
    "CifarNet",
    "CrossStitch",
    "DSelectK",
    "HardSharing",
    "LearningToBranch",
    "MMoE",
    "MnistNet",
    "Mtan",
    "Ple",
    "SegNet",
    "SvhnNet",
    "UnetPerTask",
    "UnetShared",
    "share_weights",
]


def share_weights(source: nn.Module, target: nn.Module) -> None:
    """Make the weights of ``source`` those of ``target``, in the order in which both declare them.

    They are shared and not copied: a copy elsewhere in memory can be a few percent faster or slower.
    """
    given = iter(list(source.parameters()))
    for module in target.modules():
        for name, own in module.named_parameters(recurse=False):
            weights = next(given)
            if weights.shape != own.shape:
                raise ValueError(f"{name} is {tuple(own.shape)}, but {tuple(weights.shape)} is given")
            setattr(module, name, weights)
    if next(given, None) is not None:
        raise ValueError("the network by hand has fewer weights")


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class HardSharing(nn.Module):
    """ResNet18 with a linear layer per task."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        self.backbone = timm.create_model("resnet18", num_classes=0)
        self.heads = nn.ModuleList(nn.Linear(512, size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.backbone(x)
        return [head(z) for head in self.heads]


class UnetPerTask(nn.Module):
    """The encoder of a U-Net, with a decoder per task."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        nets = [smp.Unet("resnet18", encoder_weights=None, classes=size) for size in outputs]
        self.encoder = nets[0].encoder
        self.decoders = nn.ModuleList(
            nn.ModuleList([net.decoder, net.segmentation_head]) for net in nets
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.encoder(x)
        return [head(decoder(maps)) for decoder, head in self.decoders]  # type: ignore[misc]


class UnetShared(nn.Module):
    """A U-Net with a last convolution per task."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        nets = [smp.Unet("resnet18", encoder_weights=None, classes=size) for size in outputs]
        self.encoder, self.decoder = nets[0].encoder, nets[0].decoder
        self.heads = nn.ModuleList(net.segmentation_head for net in nets)

    def forward(self, x: Tensor) -> list[Tensor]:
        decoded = self.decoder(self.encoder(x))
        return [head(decoded) for head in self.heads]


class SegNet(nn.Module):
    """SegNet, shared but for two convolutions per task."""

    def __init__(self, outputs: Sequence[int], width: float) -> None:
        super().__init__()
        widths = [round(size * width) for size in (64, 128, 256, 512, 512)]
        depths = (2, 2, 3, 3, 3)
        before = [3, *widths]
        self.encoder = nn.ModuleList(map(self._block, before, widths, depths))
        self.decoder = nn.ModuleList(map(self._block, widths, [widths[0], *widths], depths))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(widths[0], widths[0], 3, padding=1), nn.Conv2d(widths[0], size, 1))
            for size in outputs
        )

    @staticmethod
    def _block(inputs: int, outputs: int, depth: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for index in range(depth):
            layers += [
                nn.Conv2d(inputs if index == 0 else outputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        places = []
        for block in self.encoder:
            x, indices = F.max_pool2d(block(x), 2, return_indices=True)
            places.append(indices)
        for block, indices in zip(reversed(self.decoder), reversed(places), strict=True):
            x = block(F.max_unpool2d(x, indices, 2))
        return [head(x) for head in self.heads]


class _Attention(nn.Module):
    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.masks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(size if level == 0 else 2 * size, size // 4, 1),
                nn.BatchNorm2d(size // 4),
                nn.ReLU(inplace=True),
                nn.Conv2d(size // 4, size, 1),
                nn.BatchNorm2d(size),
                nn.Sigmoid(),
            )
            for level, size in enumerate(channels)
        )
        self.carries = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(inplace=True)
            )
            for before, size in pairwise(channels)
        )

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        attended = self.masks[0](maps[0]) * maps[0]
        for mask, carry, shared in zip(self.masks[1:], self.carries, maps[1:], strict=True):
            carried = F.adaptive_max_pool2d(carry(attended), shared.shape[-2:])
            attended = mask(torch.cat([shared, carried], dim=1)) * shared
        return attended


class Mtan(nn.Module):
    """Attention of every task on the feature pyramid of a ResNet10."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        self.backbone = timm.create_model("resnet10t", features_only=True)
        channels = self.backbone.feature_info.channels()
        self.attention = nn.ModuleList(_Attention(channels) for _ in outputs)
        self.heads = nn.ModuleList(nn.Linear(channels[-1], size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.backbone(x)
        return [
            head(attention(maps).mean((2, 3)))
            for attention, head in zip(self.attention, self.heads, strict=True)
        ]


def _mix(weights: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    return torch.einsum("bn,bnd->bd", weights, torch.stack(list(outputs), dim=1))


class MMoE(nn.Module):
    """Experts that every task mixes by its own gate."""

    def __init__(self, outputs: Sequence[int], inputs: int, hidden: Sequence[int], experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(_mlp(inputs, *hidden) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(inputs, experts, bias=False) for _ in outputs)
        self.heads = nn.ModuleList(nn.Linear(hidden[-1], size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        mixed = torch.stack([expert(x) for expert in self.experts], dim=1)
        return [
            head(torch.einsum("bn,bnd->bd", gate(x).softmax(dim=1), mixed))
            for gate, head in zip(self.gates, self.heads, strict=True)
        ]


class Cgc(nn.Module):
    """Shared experts and experts of each task."""

    def __init__(
        self, outputs: Sequence[int], inputs: int, hidden: Sequence[int], shared: int, own: int
    ) -> None:
        super().__init__()
        self.shared = nn.ModuleList(_mlp(inputs, *hidden) for _ in range(shared))
        self.own = nn.ModuleList(
            nn.ModuleList(_mlp(inputs, *hidden) for _ in range(own)) for _ in outputs
        )
        self.gates = nn.ModuleList(nn.Linear(inputs, shared + own, bias=False) for _ in outputs)
        self.heads = nn.ModuleList(nn.Linear(hidden[-1], size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        shared = [expert(x) for expert in self.shared]
        predictions = []
        for experts, gate, head in zip(self.own, self.gates, self.heads, strict=True):
            own = [expert(x) for expert in experts]  # type: ignore[attr-defined]
            predictions.append(head(_mix(gate(x).softmax(dim=1), own + shared)))
        return predictions


class Ple(nn.Module):
    """Two levels of shared experts and experts of each task."""

    def __init__(
        self, outputs: Sequence[int], inputs: int, hidden: Sequence[int], shared: int, own: int
    ) -> None:
        super().__init__()
        sizes, last = (inputs, hidden[-1]), hidden[-1]
        self.shared = nn.ModuleList(
            nn.ModuleList(_mlp(size, *hidden) for _ in range(shared)) for size in sizes
        )
        self.own = nn.ModuleList(
            nn.ModuleList(nn.ModuleList(_mlp(size, *hidden) for _ in range(own)) for _ in outputs)
            for size in sizes
        )
        self.gates = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, shared + own, bias=False) for _ in outputs) for size in sizes
        )
        self.shared_gate = nn.Linear(inputs, shared + own * len(outputs), bias=False)
        self.heads = nn.ModuleList(nn.Linear(last, size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        tasks = range(len(self.heads))
        own_inputs, shared_input = [x for _ in tasks], x
        for level in range(2):
            experts: Any = self.own[level]
            gates: Any = self.gates[level]
            shared_experts: Any = self.shared[level]
            shared = [expert(shared_input) for expert in shared_experts]
            own = [[expert(own_inputs[k]) for expert in experts[k]] for k in tasks]
            if level == 0:
                weights = self.shared_gate(shared_input).softmax(dim=1)
                shared_input = _mix(weights, [*(one for task in own for one in task), *shared])
            own_inputs = [_mix(gates[k](own_inputs[k]).softmax(dim=1), own[k] + shared) for k in tasks]
        return [head(mixed) for head, mixed in zip(self.heads, own_inputs, strict=True)]


class _Selection(nn.Module):
    """A gate of DSelect-k that does not depend on the sample."""

    codes: Tensor

    def __init__(self, experts: int, k: int) -> None:
        super().__init__()
        bits = (experts - 1).bit_length()
        codes = torch.arange(experts)[:, None] >> torch.arange(bits)[None, :] & 1
        self.register_buffer("codes", codes.bool())
        self.z = nn.Parameter(torch.empty(k, bits).uniform_(-0.01, 0.01))
        self.alpha = nn.Parameter(torch.empty(k).uniform_(-0.05, 0.05))

    def forward(self) -> tuple[Tensor, Tensor]:
        t = self.z.clamp(-0.5, 0.5)
        on = (-2 * t**3 + 1.5 * t + 0.5)[:, None, :]
        selected = torch.where(self.codes, on, 1 - on).prod(dim=-1)  # (k, n)
        entropy = torch.special.entr(selected.clamp_min(1e-38)).sum()
        return self.alpha.softmax(dim=0) @ selected, entropy


class DSelectK(nn.Module):
    """Experts of which every task learns to select k."""

    def __init__(
        self, outputs: Sequence[int], inputs: int, hidden: Sequence[int], experts: int, k: int
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(_mlp(inputs, *hidden) for _ in range(experts))
        self.gates = nn.ModuleList(_Selection(experts, k) for _ in outputs)
        self.heads = nn.ModuleList(nn.Linear(hidden[-1], size) for size in outputs)
        self.penalty: Any = 0.0

    def forward(self, x: Tensor) -> list[Tensor]:
        mixed = torch.stack([expert(x) for expert in self.experts], dim=1)
        predictions, entropies = [], []
        for gate, head in zip(self.gates, self.heads, strict=True):
            weights, entropy = gate()
            predictions.append(head(torch.einsum("n,bnd->bd", weights, mixed)))
            entropies.append(entropy)
        self.penalty = 0.01 * sum(entropies)
        return predictions


def _resnet_stages() -> list[nn.Module]:
    net = timm.create_model("resnet10t", num_classes=0)
    return [
        nn.Sequential(net.conv1, net.bn1, net.act1),
        nn.Sequential(net.maxpool, net.layer1),
        net.layer2,
        net.layer3,
        net.layer4,
    ]


def _weighted_sum(weights: Tensor, maps: Sequence[Tensor]) -> Tensor:
    mixed = weights[0] * maps[0]
    for weight, each in zip(weights[1:], maps[1:], strict=True):
        mixed = mixed + weight * each
    return mixed


class CrossStitch(nn.Module):
    """A ResNet10 per task, whose maps are mixed after every stage."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        tasks = len(outputs)
        self.nets = nn.ModuleList(nn.ModuleList(_resnet_stages()) for _ in outputs)
        self.stitches = nn.ParameterList(
            torch.full((tasks,), 0.1 / (tasks - 1)) for _ in range(5 * tasks)
        )
        self.heads = nn.ModuleList(nn.Linear(512, size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        tasks = len(self.heads)
        maps = [x] * tasks
        for stage in range(5):
            maps = [net[stage](each) for net, each in zip(self.nets, maps, strict=True)]  # type: ignore[index]
            maps = [_weighted_sum(self.stitches[stage * tasks + k], maps) for k in range(tasks)]
        return [head(each.mean((2, 3))) for head, each in zip(self.heads, maps, strict=True)]


class LearningToBranch(nn.Module):
    """Stages of ResNet10, several of each but the first; a node mixes those before it by a draw."""

    def __init__(self, outputs: Sequence[int], nodes: int, warmup: int) -> None:
        super().__init__()
        nets = [_resnet_stages() for _ in range(nodes)]
        self.stem = nets[0][0]
        self.stages = nn.ModuleList(nn.ModuleList(net[level] for net in nets) for level in range(1, 5))
        self.logits = nn.ParameterList(torch.zeros(nodes) for _ in range(3 * nodes))
        self.task_logits = nn.ParameterList(torch.zeros(nodes) for _ in outputs)
        self.heads = nn.ModuleList(nn.Linear(512, size) for size in outputs)
        self.nodes, self.warmup, self.steps = nodes, warmup, 0

    def forward(self, x: Tensor) -> list[Tensor]:
        self.steps += 1
        first, *others = self.stages
        z = self.stem(x)
        maps = [node(z) for node in first]  # type: ignore[attr-defined]
        for level, stage in enumerate(others):
            maps = [
                node(self._draw(self.logits[level * self.nodes + index], maps))
                for index, node in enumerate(stage)  # type: ignore[arg-type]
            ]
        return [
            head(self._draw(logits, maps).mean((2, 3)))
            for head, logits in zip(self.heads, self.task_logits, strict=True)
        ]

    def _draw(self, logits: Tensor, maps: Sequence[Tensor]) -> Tensor:
        if self.steps <= self.warmup:
            weights = torch.full_like(logits, 1 / len(maps))
        else:
            weights = F.gumbel_softmax(logits, tau=max(0.5, 10.0 * 0.999**self.steps), dim=0)
        return _weighted_sum(weights, maps)


class _DigitNet(nn.Module):
    def __init__(self, outputs: Sequence[int], convolutions: nn.Sequential, pixels: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *convolutions, nn.Flatten(), nn.Linear(pixels, 50), nn.ReLU(), nn.BatchNorm1d(50)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, size)) for size in outputs
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.backbone(x)
        predictions = [head(z) for head in self.heads]
        return [p.log_softmax(dim=1) if p.shape[1] > 1 else p for p in predictions]


def _lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2)
    )


class MnistNet(_DigitNet):
    """The paper's reduced LeNet, for images of 28 x 28."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__(outputs, _lenet(), 20 * 4 * 4)


class SvhnNet(_DigitNet):
    """The same with a third convolution, for images of 32 x 64."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__(outputs, nn.Sequential(*_lenet(), nn.Conv2d(20, 20, 5)), 20 * 1 * 9)


class CifarNet(nn.Module):
    """The paper's ResNet18 without pooling."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        self.backbone = timm.create_model("resnet18", num_classes=0, global_pool="")
        self.norm = nn.BatchNorm1d(512)
        self.heads = nn.ModuleList(nn.Linear(512, size) for size in outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.norm(self.backbone(x).flatten(1))
        return [head(z).sigmoid() for head in self.heads]


class CelebaNet(nn.Module):
    """The paper's convolutional net for CelebA."""

    def __init__(self, outputs: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for size, pools in (
            (64, True),
            (128, False),
            (128, True),
            (256, False),
            (256, True),
            (512, False),
        ):
            layers += [nn.Conv2d(inputs, size, 3), nn.BatchNorm2d(size)]
            layers += [nn.MaxPool2d(2)] if pools else []
            inputs = size
        self.backbone = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(512 * 2 * 2, 512), nn.BatchNorm1d(512)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 128), nn.BatchNorm1d(128), nn.Linear(128, size))
            for size in outputs
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.backbone(x)
        return [head(z).sigmoid() for head in self.heads]
