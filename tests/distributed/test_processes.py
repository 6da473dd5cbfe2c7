"""N processes with batch B/N take the very step that one process takes with batch B."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import mtlkit
from tests.distributed.launch import run_processes
from tests.networks import SmallNet

STEPS = 10
BATCH = 8
# samples with a label: of task 0 all; of task 1 only on the first process; of task 2 some on both
LABELS = torch.tensor(
    [[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 0, 1], [1, 0, 0]]
)


def cases() -> list[str]:
    """Every method with respect to features; those that merge also with respect to parameters."""
    found = []
    for name in mtlkit.list_methods():
        method = mtlkit.create_method(name, 3, feature_dim=6)
        if any("distributed" in part.waived_laws for part in method.parts):
            continue
        found.append(name)
        merge = method.merge_part
        if merge is not None and "wrt_parameters" not in merge.waived_laws:
            found.append(f"{name}|parameters")
    return found


def build(case: str) -> SmallNet:
    name, _, wrt = case.partition("|")
    torch.manual_seed(7)
    options = {"wrt": wrt} if wrt else {}
    return SmallNet(name, **options).double()


def run(net: SmallNet, module, rank: int, world: int) -> dict[str, torch.Tensor]:
    groups = mtlkit.param_groups(net, lr=0.02, method_lr=0.01)
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    generator = torch.Generator().manual_seed(3)
    share = BATCH // world
    for step in range(STEPS):
        x = torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)
        labels = LABELS.clone()
        if step % 4 == 3:
            labels[:, 2] = 0  # a task that nobody has labels of
        if step == 5:
            labels[BATCH // 2 :] = 0  # the second process has no label at all
        mine = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        module(x[mine], labels[mine]).backward()
        optimizer.step()
    return {key: value.clone() for key, value in net.state_dict().items()}


def on_rank(rank: int, world: int, names: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    results = {}
    for case in names:
        net = build(case)
        module = DistributedDataParallel(net, find_unused_parameters=True)
        results[case] = run(net, module, rank, world)
    return results


@pytest.fixture(scope="module")
def ranks():
    return run_processes(on_rank, cases())


@pytest.mark.parametrize("case", cases())
def test_two_processes_end_where_one_process_does(ranks, case):
    net = build(case)
    alone = run(net, net, 0, 1)
    first, second = ranks[0][case], ranks[1][case]
    for key, expected in alone.items():
        assert torch.equal(first[key], second[key]), f"ranks differ in {key}"
        scale = max(1.0, float(expected.abs().max())) if expected.is_floating_point() else 1.0
        assert (first[key].double() - expected.double()).abs().max() <= 1e-6 * scale, key
