"""Train with DeepSpeed's engine, in the processes that torchrun started, and save what became of it.

Usage: torchrun --nproc_per_node 2 train_with_deepspeed.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import mtlkit
from mtlkit.testing.small_network import SmallNetwork

BATCH, STEPS, RATE = 8, 4, 0.02
FORKED = (
    "sum",
    "uw",
    "gradnorm",
    "pcgrad",
    "nash_mtl",
    "graddrop",
    "rotograd",
    "pcgrad(wrt=parameters)",
)
UNFORKED = ("upgrad(wrt=parameters)", "dwa")
CASES = [
    *((spec, stage, 1) for spec in (*FORKED, *UNFORKED) for stage in (0, 1, 2)),
    *((spec, 3, 1) for spec in ("sum", "pcgrad", "nash_mtl", "dwa")),
    *((spec, 2, 2) for spec in ("pcgrad", "uw", "rotograd")),  # two micro-batches per step
]
"""Method, ZeRO stage, micro-batches per step."""
REFUSED = [("uw", 3, 1), ("rotograd", 3, 1), ("pcgrad(wrt=parameters)", 3, 1)]


class Network(SmallNetwork):
    """Leaves ``method(features)`` out where a method does not need it."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        if str(self.method) not in UNFORKED:
            return super().forward(x, labels)
        return self.method.total(self.losses_of([self.backbone(x)] * len(self.heads), x, labels))


def network(spec: str) -> Network:
    """The network of a case; the same on every process."""
    torch.manual_seed(0)
    net = Network(mtlkit.create_method(spec, 3, feature_dim=6))
    if net.method.wrt_parameters:
        net.method.set_shared(net.backbone)
    return net


def batches(micro: int) -> Iterator[list[Tensor]]:
    """The micro-batches of every step."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield [torch.randn(BATCH, 4, generator=generator) for _ in range(micro)]


def train(spec: str, stage: int, micro: int) -> dict[str, Tensor]:
    """Parameters after some steps with DeepSpeed's engine."""
    import deepspeed

    net = network(spec)
    rank, world = dist.get_rank(), dist.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": BATCH // world,
        "gradient_accumulation_steps": micro,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    for step in batches(micro):
        for x in step:
            engine.backward(engine(x.chunk(world)[rank]))
            engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        return {name: value.detach().clone() for name, value in net.named_parameters()}


def main() -> None:
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    found: dict[object, object] = {case: train(*case) for case in CASES}
    for case in REFUSED:
        try:
            found[case] = train(*case)
        except mtlkit.errors.UsageError as error:
            found[case] = str(error)
    torch.save(found, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
