"""The junction at the losses on two gloo processes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mtlkit
from tests.distributed.launch import run_processes

TASKS, STEPS, BATCH = 3, 24, 8
SPECS = [
    "pcgrad(wrt=parameters)",
    "config(wrt=parameters)",
    "upgrad(wrt=parameters)",
    "graddrop(wrt=parameters)",
    "gradnorm(wrt=parameters)",
    "moco(wrt=parameters)",
    "uw+pcgrad(wrt=parameters)",
    "normalize+cagrad(wrt=parameters)",
]


class Net(nn.Module):
    """A trunk of all tasks and a layer of each; the forward gives predictions, or the total loss."""

    def __init__(self, spec: str, *, name_shared: bool = True):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(TASKS))
        self.method = mtlkit.create_method(spec, TASKS, shared=self if name_shared else None)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor | list[Tensor]:
        z = self.trunk(x)
        predictions = [head(z)[:, 0] for head in self.heads]
        return predictions if labels is None else self.total(x, predictions, labels)

    def total(self, x: Tensor, predictions: list[Tensor], labels: Tensor) -> Tensor:
        losses: list[Tensor | None] = []
        for k, prediction in enumerate(predictions):
            errors = (prediction - (-2) ** k * torch.sin((k + 1) * x.sum(dim=1))).square()
            mask = labels[:, k]
            losses.append((errors * mask).sum() / len(x) if mask.any() else None)
        return self.method.total(losses)


def batches(absent_everywhere: bool) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for step in range(STEPS):
        x = torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)
        labels = torch.ones(BATCH, TASKS, dtype=torch.bool)
        if step % 2:
            labels[BATCH // 2 :, 2] = False  # a task without labels on the second process
        if step % 10 == 4:
            labels[: BATCH // 2] = False  # no labels at all on the first one
        if absent_everywhere and step % 7 == 6:
            labels[:, 0] = False
        found.append((x, labels))
    return found


def train(rank: int, world: int, spec: str, inside: bool) -> Tensor:
    torch.manual_seed(0)
    net = Net(spec).double()
    # inside the forward DDP may look for unused parameters; outside it waits for all of them
    wrapped = DistributedDataParallel(net, find_unused_parameters=inside) if world > 1 else net
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, labels in batches(absent_everywhere=inside):
        x, labels = x.chunk(world)[rank], labels.chunk(world)[rank]
        optimizer.zero_grad()
        total = wrapped(x, labels) if inside else net.total(x, wrapped(x), labels)
        total.backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def _train_all(rank: int, world: int) -> dict[tuple[str, bool], Tensor]:
    return {
        (spec, inside): train(rank, world, spec, inside) for spec in SPECS for inside in (True, False)
    }


@pytest.fixture(scope="module")
def trained() -> list[dict[tuple[str, bool], Tensor]]:
    return run_processes(_train_all)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_two_processes_take_the_steps_of_one(spec, inside, trained):
    torch.set_num_threads(1)
    one = train(0, 1, spec, inside)
    difference = max((one - two[spec, inside]).abs().max().item() for two in trained)
    print(f"{spec}: {difference:.1e}")
    assert difference < 1e-12


def _error_without_shared(rank: int, world: int) -> str:
    net = Net("pcgrad(wrt=parameters)", name_shared=False)
    try:
        net(torch.randn(4, 4), torch.ones(4, TASKS))
    except mtlkit.errors.UsageError as error:
        return str(error)
    return ""


def test_the_shared_parameters_must_be_named_on_several_processes():
    for message in run_processes(_error_without_shared):
        assert "pass shared=model to create_method" in message


def _errors_of_sharded(rank: int, world: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    messages = []
    for layers in (False, True):
        net = Net("sum")
        mesh = init_device_mesh("cpu", (world,))
        if layers:
            fully_shard(net.trunk[0], mesh=mesh)
            fully_shard(net.trunk[2], mesh=mesh)
        fully_shard(net, mesh=mesh)
        net.method = mtlkit.create_method("pcgrad(wrt=parameters)", TASKS, shared=net)
        try:
            net(torch.randn(4, 4), torch.ones(4, TASKS)).backward()
            messages.append("")
        except mtlkit.errors.UsageError as error:
            messages.append(str(error))
    return messages


def test_parameters_sharded_by_fsdp_are_refused():
    for messages in run_processes(_errors_of_sharded):
        assert len(messages) == 2
        for message in messages:
            assert "mtlkit.backward(losses, method, parameters=model)" in message
