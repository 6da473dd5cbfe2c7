"""Rotations in two processes: the same matrices on both, and those of one process."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import mtlkit
from tests.distributed.launch import run_processes
from tests.networks import SmallNet

BATCH = 8
# Adam moves a parameter whose gradient is zero; between updates the rotations must rest all the same
CASES = [
    ("rotograd", "sgd", {}),
    ("rotograd", "adam", {}),
    ("rotate(update_every=2)+scale", "adam", {}),
    ("rotate(update_every=2)+scale", "adam", {"gradient_as_bucket_view": True}),
    ("rotate(update_every=3, size=4, blocks=2)+pcgrad", "radam", {}),
    ("rotate(backend=geotorch, update_every=2)+scale", "adam", {}),
]


def run(net: SmallNet, module, kind: str, rank: int, world: int) -> dict[str, torch.Tensor]:
    groups = mtlkit.param_groups(net, lr=0.02, method_lr=0.01)
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
    optimizer = makers[kind](groups)
    generator = torch.Generator().manual_seed(3)
    share = BATCH // world
    for _ in range(9):
        x = torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        module(x[rank * share : (rank + 1) * share]).backward()
        optimizer.step()
    return {"rotations": net.method.rotations, **{k: v.clone() for k, v in net.state_dict().items()}}


def build(spec: str) -> SmallNet:
    torch.manual_seed(7)
    return SmallNet(spec).double()


def on_rank(rank: int, world: int) -> list[dict[str, torch.Tensor]]:
    results = []
    for spec, kind, options in CASES:
        net = build(spec)
        results.append(run(net, DistributedDataParallel(net, **options), kind, rank, world))
    return results


@pytest.fixture(scope="module")
def ranks():
    return run_processes(on_rank)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{c[0]}-{c[1]}-{len(c[2])}" for c in CASES])
def test_two_processes_rotate_as_one_does(ranks, index):
    spec, kind, _ = CASES[index]
    net = build(spec)
    alone = run(net, net, kind, 0, 1)
    first, second = ranks[0][index], ranks[1][index]
    assert (alone["rotations"] - torch.eye(alone["rotations"].shape[-1])).abs().max() > 1e-3
    for key, expected in alone.items():
        assert torch.equal(first[key], second[key]), f"ranks differ in {key}"
        assert (first[key].double() - expected.double()).abs().max() <= 1e-6, key
