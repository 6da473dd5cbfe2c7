"""Two processes with half of the batch each take the steps of one process."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import mtlkit
from tests.architectures.cases import TASKS, losses_of, objective
from tests.distributed.launch import run_processes

NETWORKS = [
    ("hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(6))", "rotograd"),
    ("mmoe(backbone=mlp(16, inputs=8), expert=mlp(12))", "pcgrad"),
    ("ple(input_size=8, expert=mlp(12))", "rotograd"),
    ("dselect_k(input_size=8, expert=mlp(12), entropy=0.1)", "mgda"),
    ("cross_stitch(backbone=mlp(16, 12, inputs=8), fork=streams)", "pcgrad"),
    ("ltb(backbone=mlp(16, 12, inputs=8), temperature=1.0)", "sum"),
]


def run(spec: str, method: str, rank: int, world: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    net = mtlkit.create_architecture(spec, TASKS, method=method).double()
    module = DistributedDataParallel(net) if world > 1 else net
    groups = mtlkit.param_groups(net, lr=0.05, method_lr=0.02)
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    targets = {
        task: torch.randn(8, size, generator=generator, dtype=torch.float64)
        for task, size in TASKS.items()
    }
    share = 8 // world
    mine = slice(rank * share, (rank + 1) * share)
    for _ in range(8):
        optimizer.zero_grad()
        predictions = module(x[mine])
        losses = losses_of(predictions, {task: t[mine] for task, t in targets.items()})
        objective(net, losses).backward()
        optimizer.step()
    return {key: value.clone() for key, value in net.state_dict().items()}


def on_rank(rank: int, world: int) -> list[dict[str, torch.Tensor]]:
    return [run(spec, method, rank, world) for spec, method in NETWORKS]


@pytest.fixture(scope="module")
def ranks():
    return run_processes(on_rank)


@pytest.mark.parametrize("index", range(len(NETWORKS)), ids=[spec for spec, _ in NETWORKS])
def test_two_processes_end_where_one_does(ranks, index):
    alone = run(*NETWORKS[index], 0, 1)
    for key, expected in alone.items():
        assert torch.equal(ranks[0][index][key], ranks[1][index][key]), key
        difference = (ranks[0][index][key].double() - expected.double()).abs().max()
        assert difference <= 1e-6 * max(1.0, float(expected.abs().max())), key
