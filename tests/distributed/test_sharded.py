"""A network that FSDP2 has sharded ends where one process ends, its method's parameters included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mtlkit
from tests.distributed.launch import run_processes
from tests.networks import SmallNet

STEPS, BATCH = 8, 8
# SGD shows whether gradients are averaged; Adam would move a parameter whose gradient is zero
CASES = [
    (spec, root, optimizer, inside)
    for spec in (
        "rotograd",
        "rotograd(fold_every=1)",
        "gradnorm",
        "uw",
        "imtl_l+rotate(update_every=2)+scale",
    )
    for root in (True, False)
    for optimizer, inside in (("sgd", False), ("adam", True))
]


class Net(SmallNet):
    """The total is computed ``inside`` the forward that FSDP wraps, or after it."""

    inside = True

    def forward(self, x: Tensor) -> Tensor | list[Tensor | None]:
        losses = self.losses(x)
        return self.method.total(losses) if self.inside else losses


def shard(net: Net, root: bool) -> None:
    """The backbone, each head and, if ``root``, all that is left: the method's parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (net.backbone, *net.heads):
        fully_shard(module, mesh=mesh)
    if root:
        fully_shard(net, mesh=mesh)
    sharded = [hasattr(parameter, "full_tensor") for parameter in net.method.parameters()]
    assert all(sharded) if root else not any(sharded)


def start(
    spec: str, root: bool, kind: str, inside: bool, world: int
) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(7)
    net = Net(spec).double()
    net.inside = inside
    if world > 1:
        shard(net, root)
    groups = mtlkit.param_groups(net, lr=0.02, method_lr=0.01)
    return net, {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](groups)


def train(
    spec: str,
    root: bool,
    kind: str,
    inside: bool,
    rank: int = 0,
    world: int = 1,
    steps: int = STEPS,
    cut: int | None = None,
) -> dict[str, Tensor]:
    """Train; before step ``cut``, go on with another network that loads this one's state."""
    net, optimizer = start(spec, root, kind, inside, world)
    generator = torch.Generator().manual_seed(3)
    share = BATCH // 2 // world
    for step in range(steps):
        if step == cut:
            state = {key: value.clone() for key, value in net.state_dict().items()}
            net, optimizer = start(spec, root, kind, inside, world)
            net.load_state_dict(state)
        x = torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        for micro in x.chunk(2):
            found = net(micro[rank * share : (rank + 1) * share])
            (found if inside else net.method.total(found)).backward()
        optimizer.step()
    state = net.state_dict()
    ends = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for k, v in state.items()}
    with torch.no_grad():
        ends["evaluated"] = torch.stack(net.eval().losses(x))  # of the whole batch on every process
    return ends


def on_rank(rank: int, world: int) -> list[dict[str, Tensor]]:
    return [train(*case, rank, world) for case in CASES]


def resume(rank: int, world: int) -> list[list[dict[str, Tensor]]]:
    cases = [
        (spec, True, "sgd", True, rank, world) for spec in ("rotograd(fold_every=3)", "rotate+scale")
    ]
    return [[train(*case, cut=cut) for cut in (None, 1, 2, 6)] for case in cases]


def train_long(rank: int, world: int) -> bool:
    return all(value.isfinite().all() for value in train(*CASES[0], rank, world, steps=120).values())


@pytest.fixture(scope="module")
def ranks() -> list[list[dict[str, Tensor]]]:
    return run_processes(on_rank)


def label(case: tuple[str, bool, str, bool]) -> str:
    spec, root, optimizer, _ = case
    return f"{spec}-{'root' if root else 'submodules'}-{optimizer}"


@pytest.mark.parametrize("index", range(len(CASES)), ids=map(label, CASES))
def test_a_sharded_network_ends_where_one_process_does(ranks, index: int) -> None:
    alone = train(*CASES[index])
    first, second = ranks[0][index], ranks[1][index]
    for key, expected in alone.items():
        found = first[key]
        assert torch.equal(found, second[key]), f"ranks differ in {key}"
        if key.endswith("rotation._extra_state") and "update_every" in CASES[index][0]:
            found, expected = found[:2], expected[:2]  # sharded, the last step counts as an update
        assert (found.double() - expected.double()).abs().max() <= 1e-5, key


def test_a_sharded_network_resumes_between_two_folds_of_the_rotations() -> None:
    for runs in run_processes(resume)[0]:
        whole, *resumed = runs
        for run in resumed:
            assert all(torch.equal(whole[key], value) for key, value in run.items())


def test_comparing_replicas_at_steps_10_and_100_reads_no_freed_storage() -> None:
    """A process that reads it ends with a segmentation fault."""
    assert run_processes(train_long) == [True, True]
