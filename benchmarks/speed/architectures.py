"""A training step of each architecture, as a ratio to the same network written by hand.

Both take the sum of the tasks' losses, of the same batch, from the same weights. The names of the rows
say how large the batch is; a step takes some 50 to 200 ms, so that what is measured is not the
microseconds that any layer of Python costs. One thread is used: two of them wait for each other wherever
another process takes a core, and that is all that one would see.

The value with a limit is 1 + (difference of the steps without the layers' work) / (step by hand), see
:mod:`benchmarks.speed.stand_ins`: it repeats to a few tenths of a percent. The plain quotient of whole
steps is shown besides, and says that nothing is left out. In so few rounds it is good to a few percent;
``--seconds 200`` gives every architecture some hundred rounds, and the quotient to about one percent.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mtlkit
from benchmarks.speed import by_hand
from benchmarks.speed.stand_ins import hollow
from benchmarks.speed.timing import Row, interleave, keep_memory

TASKS = {"seg": 13, "depth": 1, "normal": 3}
OUTPUTS = tuple(TASKS.values())
LIMIT = 1.02
ADDED = "step of an architecture with 3 tasks / by hand, the layers' own time taken as the same"
DIRECT = "the same, quotient of whole steps"
SECONDS = 7.0
BLOCKS = 5


@dataclass(frozen=True)
class _Network:
    spec: str
    shape: tuple[int, ...]
    by_hand: Callable[[], nn.Module]
    note: str = ""

    @property
    def name(self) -> str:
        """Name of the architecture."""
        return self.spec.partition("(")[0]

    @property
    def label(self) -> str:
        """The architecture and the size of its input."""
        batch, *sample = self.shape
        size = " x ".join(map(str, sample))
        return f"{self.name}, {self.note}batch {batch} of {size}"


NETWORKS = [
    _Network(
        "hard_sharing(backbone=timm.resnet18)",
        (16, 3, 32, 32),
        lambda: by_hand.HardSharing(OUTPUTS),
        "ResNet18, ",
    ),
    _Network(
        "smp(encoder=resnet18, decoder=unet)",
        (2, 3, 64, 64),
        lambda: by_hand.UnetPerTask(OUTPUTS),
        "U-Net per task, ",
    ),
    _Network(
        "smp(encoder=resnet18, decoder=unet, split=decoder)",
        (2, 3, 64, 64),
        lambda: by_hand.UnetShared(OUTPUTS),
        "U-Net shared, ",
    ),
    _Network(
        "segnet(width=0.25)",
        (2, 3, 96, 96),
        lambda: by_hand.SegNet(OUTPUTS, 0.25),
        "width 1/4, ",
    ),
    _Network(
        "mtan(backbone=timm.resnet10t)",
        (4, 3, 64, 64),
        lambda: by_hand.Mtan(OUTPUTS),
        "ResNet10, ",
    ),
    _Network(
        "cross_stitch(backbone=timm.resnet10t)",
        (4, 3, 64, 64),
        lambda: by_hand.CrossStitch(OUTPUTS),
        "ResNet10, ",
    ),
    _Network(
        "ltb(backbone=timm.resnet10t, nodes=2, warmup=1)",
        (4, 3, 64, 64),
        lambda: by_hand.LearningToBranch(OUTPUTS, nodes=2, warmup=1),
        "ResNet10, ",
    ),
    _Network(
        "mmoe(input_size=512, expert=mlp(512, 128), experts=6)",
        (1024, 512),
        lambda: by_hand.MMoE(OUTPUTS, 512, (512, 128), experts=6),
        "6 experts, ",
    ),
    _Network(
        "cgc(input_size=512, expert=mlp(512, 128), shared_experts=2, task_experts=1)",
        (1024, 512),
        lambda: by_hand.Cgc(OUTPUTS, 512, (512, 128), shared=2, own=1),
        "5 experts, ",
    ),
    _Network(
        "ple(input_size=512, expert=mlp(512, 128), shared_experts=2, task_experts=1)",
        (1024, 512),
        lambda: by_hand.Ple(OUTPUTS, 512, (512, 128), shared=2, own=1),
        "2 x 5 experts, ",
    ),
    _Network(
        "dselect_k(input_size=512, expert=mlp(512, 128), experts=8, k=2)",
        (1024, 512),
        lambda: by_hand.DSelectK(OUTPUTS, 512, (512, 128), experts=8, k=2),
        "2 of 8 experts, ",
    ),
    _Network("paper_mnist", (512, 1, 28, 28), lambda: by_hand.MnistNet(OUTPUTS)),
    _Network("paper_svhn", (128, 1, 32, 64), lambda: by_hand.SvhnNet(OUTPUTS)),
    _Network("paper_cifar10", (16, 3, 32, 32), lambda: by_hand.CifarNet(OUTPUTS)),
    _Network("paper_celeba", (8, 3, 64, 64), lambda: by_hand.CelebaNet(OUTPUTS)),
]


def _step(net: nn.Module, total: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        total().backward()
        optimizer.step()

    return step


def _by_architecture(net: Any, x: Tensor) -> Callable[[], None]:
    def total() -> Tensor:
        losses = {task: prediction.square().mean() for task, prediction in net(x).items()}
        term = net.auxiliary_loss()
        return net.method.total(losses) if term is None else net.method.total(losses) + term

    return _step(net, total)


def _by_hand(net: nn.Module, x: Tensor) -> Callable[[], None]:
    def total() -> Tensor:
        losses = sum(prediction.square().mean() for prediction in net(x))
        return losses + net.penalty if hasattr(net, "penalty") else losses

    return _step(net, total)


def candidates(network: _Network, hollowed: bool = False) -> dict[str, Callable[[], None]]:
    """Return the steps of both networks, which must predict the same; or without their layers."""
    torch.manual_seed(0)
    x = torch.randn(network.shape)
    ours = mtlkit.create_architecture(network.spec, TASKS)
    plain = network.by_hand()
    by_hand.share_weights(ours, plain)
    with torch.no_grad():
        for prediction, expected in zip(ours(x).values(), plain(x), strict=True):
            torch.testing.assert_close(prediction, expected, rtol=1e-4, atol=1e-5)
    if hollowed:
        hollow(ours)
        hollow(plain)
    return {"ours": _by_architecture(ours, x), "by hand": _by_hand(plain, x)}


def _rounds(steps: Mapping[str, Callable[[], None]], budget: float) -> int:
    """Return how many rounds fit into the seconds of ``budget``; its steps also warm up."""
    once = interleave(steps, rounds=3)
    return max(10, int(budget / sum(min(seconds) for seconds in once.values())))


def _compare(network: _Network, seconds: float) -> tuple[float, float, float]:
    """Return the added fraction, the quotient of whole steps, and the seconds of a step by hand.

    Whole steps and those without layers take turns: the machine may be slower by half for a minute,
    and what is divided must be of the same minute.
    """
    whole, around = candidates(network), candidates(network, hollowed=True)
    rounds = _rounds(whole, seconds - SECONDS / 2), _rounds(around, SECONDS / 2)
    added: list[float] = []
    quotients: list[float] = []
    by_hand_seconds: list[float] = []
    for _ in range(BLOCKS):
        steps = interleave(whole, -(-rounds[0] // BLOCKS), warmup=0)
        quotients += (a / b for a, b in zip(steps["ours"], steps["by hand"], strict=True))
        by_hand_seconds += steps["by hand"]
        step = statistics.median(steps["by hand"])
        bare = interleave(around, -(-rounds[1] // BLOCKS), warmup=0)
        added += ((a - b) / step for a, b in zip(bare["ours"], bare["by hand"], strict=True))
    median = statistics.median
    return median(added), median(quotients), median(by_hand_seconds)


def run(only: Collection[str] = (), seconds: float = SECONDS) -> list[Row]:
    """Time every architecture, or those named, with the plain sum against the same network by hand.

    Args:
        only: names of architectures.
        seconds: for every one of them; what is above :data:`SECONDS` goes to the quotient.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()
    added, direct = [], []
    for network in NETWORKS:
        if only and network.name not in only:
            continue
        share, quotient, step = _compare(network, seconds)
        label = f"{network.label}, {1e3 * step:.0f} ms"
        added.append(Row(ADDED, label, 1 + share, limit=LIMIT))
        direct.append(Row(DIRECT, label, quotient))
    torch.set_num_threads(threads)
    return added + direct


def main() -> None:
    """``python -m benchmarks.speed.architectures [--seconds 200] [NAME ...]``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; without any, all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each (default: %(default)s)")
    arguments = parser.parse_args()
    known = {network.name for network in NETWORKS}
    if unknown := set(arguments.names) - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    if arguments.seconds < SECONDS:
        parser.error(f"--seconds must be at least {SECONDS:g}, not {arguments.seconds:g}")
    for row in run(arguments.names, arguments.seconds):
        print(f"{row.value:.4f} {row.name}: {row.group}")


if __name__ == "__main__":
    main()
