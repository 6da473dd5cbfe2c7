"""A training step of each architecture, as a ratio to the same network written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import mtlkit
from benchmarks.speed.timing import Row, interleave, ratio

TASKS = {"seg": 13, "depth": 1, "normal": 3}
LIMIT = 1.02
Forward = Callable[[Any, Tensor], list[Tensor]]


def _hard_sharing(net: Any, x: Tensor) -> list[Tensor]:
    z = net.backbone(x)
    return [head.layers(z) for head in net.heads.values()]


def _smp(net: Any, x: Tensor) -> list[Tensor]:
    maps = net.encoder(x)
    return [task.head(task.decoder(maps)) for task in net.heads.values()]


def _segnet(net: Any, x: Tensor) -> list[Tensor]:
    pooled = []
    for block in net.encoder:
        x = block(x)
        size = x.shape[-2:]
        x, places = F.max_pool2d(x, 2, return_indices=True)
        pooled.append((places, size))
    for block, (places, size) in zip(reversed(net.decoder), reversed(pooled), strict=True):
        x = block(F.max_unpool2d(x, places, [2, 2], output_size=size))
    return [head.layers(x) for head in net.heads.values()]


def _mtan(net: Any, x: Tensor) -> list[Tensor]:
    maps = net.backbone(x)
    return [
        head.layers(attention(maps).mean((2, 3)))
        for attention, head in zip(net.attention.values(), net.heads.values(), strict=True)
    ]


def _mmoe(net: Any, x: Tensor) -> list[Tensor]:
    below = net.backbone(x)
    outputs = torch.stack([expert.net(below) for expert in net.experts], dim=1)
    return [
        head.layers(torch.einsum("bn,bnd->bd", gate(below).softmax(dim=1), outputs))
        for gate, head in zip(net.gates.values(), net.heads.values(), strict=True)
    ]


def _cross_stitch(net: Any, x: Tensor) -> list[Tensor]:
    streams = [x] * len(net.tasks)
    for level, units in enumerate(net.stitches):
        streams = [stages[level](s) for stages, s in zip(net.nets.values(), streams, strict=True)]
        streams = [
            sum(
                (w * s for w, s in zip(unit.weights[1:], streams[1:], strict=True)),
                unit.weights[0] * streams[0],
            )
            for unit in units
        ]
    return [head.layers(s.mean((2, 3))) for head, s in zip(net.heads.values(), streams, strict=True)]


NETWORKS: dict[str, tuple[str, tuple[int, ...], Forward]] = {
    "hard_sharing": ("hard_sharing(backbone=timm.resnet18)", (32, 3, 32, 32), _hard_sharing),
    "smp": ("smp(encoder=resnet18, decoder=unet)", (2, 3, 96, 96), _smp),
    "segnet": ("segnet(width=0.25)", (2, 3, 96, 96), _segnet),
    "mtan": ("mtan(backbone=timm.resnet18)", (16, 3, 64, 64), _mtan),
    "mmoe": ("mmoe(backbone=timm.resnet18, expert=mlp(128))", (32, 3, 32, 32), _mmoe),
    "cross_stitch": ("cross_stitch(backbone=timm.resnet18)", (8, 3, 64, 64), _cross_stitch),
}


class _Candidate:
    """A step with the plain sum of losses; ``forward`` replaces the architecture's own."""

    def __init__(self, spec: str, x: Tensor, forward: Forward | None) -> None:
        torch.manual_seed(0)
        self.net = mtlkit.create_architecture(spec, TASKS)
        self.x, self.forward = x, forward
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        if self.forward is None:
            predictions = self.net(self.x)
            losses = {task: p.square().mean() for task, p in predictions.items()}
            total = self.net.method.total(losses)
        else:
            total = torch.stack([p.square().mean() for p in self.forward(self.net, self.x)]).sum()
        total.backward()
        self.optimizer.step()


def run(rounds: int = 25) -> list[Row]:
    """Every architecture with the plain sum against the same modules called by hand."""
    rows = []
    for name, (spec, shape, forward) in NETWORKS.items():
        torch.manual_seed(0)
        x = torch.randn(shape)
        ours, by_hand = _Candidate(spec, x, None), _Candidate(spec, x, forward)
        with torch.no_grad():
            for prediction, expected in zip(ours.net(x).values(), forward(by_hand.net, x), strict=True):
                torch.testing.assert_close(prediction, expected)
        seconds = interleave({"ours": ours, "by hand": by_hand}, rounds=rounds)
        group = "step of an architecture / the same network by hand"
        rows.append(Row(group, name, ratio(seconds, "ours", "by hand"), limit=LIMIT))
    return rows
