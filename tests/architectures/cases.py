"""Small networks of every kind, and steps on drawn data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import mtlkit
from mtlkit import Architecture

TASKS = {"a": 3, "b": 1}
MOBILENET = "timm.mobilenetv3_small_050"


@dataclass(frozen=True)
class Case:
    """A network, the shape of one input, and whether it has shared features."""

    spec: str
    shape: tuple[int, ...]
    forks: bool = True
    batch: int = 6
    heavy: bool = False

    @property
    def architecture(self) -> str:
        return self.spec.partition("(")[0]

    def build(self, method: Any = "sum", **options: Any) -> Architecture:
        torch.manual_seed(1)
        return mtlkit.create_architecture(self.spec, TASKS, method=method, **options)

    def inputs(self, seed: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.batch, *self.shape, generator=generator)


CASES = [
    Case("hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(12))", (8,)),
    Case(f"hard_sharing(backbone={MOBILENET}(features_only=True, out_indices=[3, 4]))", (3, 32, 32)),
    Case(
        "smp(encoder=timm.mobilenetv3_small_050, decoder=unet(decoder_channels=[16, 8, 8, 8, 4]))",
        (3, 32, 32),
    ),
    Case(
        "smp(encoder=timm.mobilenetv3_small_050, split=decoder, "
        "decoder=unet(decoder_channels=[16, 8, 8, 8, 4]))",
        (3, 32, 32),
    ),
    Case("segnet(width=0.08)", (3, 32, 32)),
    Case("paper_mnist(logits=True)", (1, 28, 28)),
    Case("paper_svhn(binary=[b], logits=True)", (1, 32, 64)),
    Case("paper_cifar10(logits=True)", (3, 32, 32), heavy=True),
    Case("paper_celeba(width=0.1, logits=True)", (3, 64, 64)),
    Case(f"mtan(backbone={MOBILENET}(out_indices=[2, 3, 4]))", (3, 32, 32)),
    Case("mmoe(input_size=8, expert=mlp(12), experts=3)", (8,)),
    Case("mmoe(backbone=mlp(16, inputs=8), expert=mlp(12), experts=3)", (8,)),
    Case("cgc(backbone=mlp(16, inputs=8), expert=mlp(12), shared_experts=1, task_experts=1)", (8,)),
    Case("ple(input_size=8, expert=mlp(12))", (8,)),
    Case("ple(backbone=mlp(16, inputs=8), expert=mlp(12), levels=3)", (8,)),
    Case("dselect_k(input_size=8, expert=mlp(12), experts=4)", (8,)),
    Case("dselect_k(backbone=mlp(16, inputs=8), expert=mlp(12), experts=3, gate=input)", (8,)),
    Case("cross_stitch(backbone=mlp(16, 12, inputs=8))", (8,), forks=False),
    Case("cross_stitch(backbone=mlp(16, 12, inputs=8), fork=streams)", (8,)),
    Case(f"cross_stitch(backbone={MOBILENET}, fork=streams)", (3, 32, 32)),
    Case("ltb(backbone=mlp(16, 12, inputs=8))", (8,), forks=False),
    Case("ltb(backbone=mlp(16, 16, 12, inputs=8), nodes=3, fork=nodes)", (8,)),
]


def light(cases: list[Case]) -> list[Any]:
    """Cases as parameters; heavy ones are for the slow tests."""
    return [pytest.param(case, marks=pytest.mark.slow) if case.heavy else case for case in cases]


def ids(case: Case) -> str:
    return case.spec if len(case.spec) < 60 else case.spec[:57] + "..."


def targets_for(predictions: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        task: torch.randn(prediction.shape, generator=generator).to(prediction.dtype)
        for task, prediction in predictions.items()
    }


def losses_of(predictions: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    return {task: F.mse_loss(predictions[task], targets[task]) for task in predictions}


def objective(net: Architecture, losses: dict[str, Tensor]) -> Tensor:
    total = net.method.total(losses)
    auxiliary = net.auxiliary_loss()
    return total if auxiliary is None else total + auxiliary


def train(net: Architecture, x: Tensor, steps: int, lr: float = 3e-3) -> list[float]:
    """Sum of the losses before every step."""
    with torch.no_grad():
        targets = targets_for(net.eval()(x))
    net.train()
    optimizer = torch.optim.Adam(mtlkit.param_groups(net, lr=lr, method_lr=lr))
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses = losses_of(net(x), targets)
        objective(net, losses).backward()
        optimizer.step()
        history.append(sum(float(loss.detach()) for loss in losses.values()))
    return history
