"""Two processes with half a batch each take the step of one process, labels missing or not."""

import pytest
import torch
from torch import nn

import mtlkit
from tests.distributed.launch import run_processes

SPECS = [
    "uw",
    "imtl_l",
    "si",
    "gls",
    "rlw",
    "rlw(dist=bernoulli)",
    "dwa(window=2)",
    "stch(warmup=3)",
    "famo",
    "cosmos",
    "pbi",
    "config",
    "trimmed_mean",
    "graddrop",
    "normalize(burn_in=3)+famo+config",
    "uw+graddrop",
]


class Network(nn.Module):
    def __init__(self, spec):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Linear(6, 5)
        self.heads = nn.ModuleList(nn.Linear(5, 1) for _ in range(3))
        self.method = mtlkit.create_method(spec, 3)

    def forward(self, x):
        views = self.method(self.backbone(x))
        return [head(view) for head, view in zip(self.heads, views, strict=True)]


def train(spec, labels_missing, rank=0, world=1):
    """Parameters after six steps. The first half of the batch may lack the second task's labels."""
    network = Network(spec)
    model = network
    if world > 1:
        model = nn.parallel.DistributedDataParallel(network, find_unused_parameters=labels_missing)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    size = 8 // world
    mine = slice(rank * size, (rank + 1) * size)
    for _ in range(6):
        x = torch.randn(8, 6, generator=generator)[mine]
        targets = torch.randn(3, 8, generator=generator)[:, mine]
        known = torch.ones(3, 8)
        known[1, :4] = 0 if labels_missing else 1
        known = known[:, mine]
        losses = [
            ((output.squeeze(1) - target).square() * mask).mean() if mask.any() else None
            for output, target, mask in zip(model(x), targets, known, strict=True)
        ]
        optimizer.zero_grad()
        network.method.total(losses).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def on_rank(rank, world):
    return {(s, missing): train(s, missing, rank, world) for s in SPECS for missing in (False, True)}


@pytest.fixture(scope="module")
def trained():
    return run_processes(on_rank)


@pytest.mark.parametrize("labels_missing", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_two_processes_take_the_steps_of_one(trained, spec, labels_missing):
    first, second = (found[spec, labels_missing] for found in trained)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, train(spec, labels_missing), rtol=1e-5, atol=1e-6)
