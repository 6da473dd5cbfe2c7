"""A network that FSDP2 has sharded ends where one process ends, its method's parameters included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mtlkit
from tests.distributed.launch import run_processes
from tests.networks import SmallNet

STEPS, BATCH = 8, 8
# Adam's steps hardly depend on the scale of the gradients; SGD's show whether they are averaged
CASES = [
    (spec, root, optimizer)
    for spec in ("rotograd", "gradnorm", "uw", "imtl_l+rotate(update_every=2)+scale")
    for root in (True, False)
    for optimizer in ("sgd", "adam")
]


def shard(net: SmallNet, root: bool) -> None:
    """The backbone, each head and, if ``root``, all that is left: the method's parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (net.backbone, *net.heads):
        fully_shard(module, mesh=mesh)
    if root:
        fully_shard(net, mesh=mesh)
        assert all(hasattr(parameter, "full_tensor") for parameter in net.method.parameters())


def train(spec: str, root: bool, kind: str, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(7)
    net = SmallNet(spec).double()
    if world > 1:
        shard(net, root)
    groups = mtlkit.param_groups(net, lr=0.02, method_lr=0.01)
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](groups)
    generator = torch.Generator().manual_seed(3)
    share = BATCH // world
    for _ in range(STEPS):
        x = torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        net(x[rank * share : (rank + 1) * share]).backward()
        optimizer.step()
    # whether a fold is pending is not known of a sharded parameter, so it is then folded once more
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("_extra_state")}
    found = {key: _whole(value) for key, value in state.items()}
    with torch.no_grad():
        found["evaluated"] = torch.stack(net.eval().losses(x))  # of the whole batch on every process
    return found


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def on_rank(rank: int, world: int) -> list[dict[str, Tensor]]:
    return [train(*case, rank, world) for case in CASES]


@pytest.fixture(scope="module")
def ranks() -> list[list[dict[str, Tensor]]]:
    return run_processes(on_rank)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{s}-{r}-{o}" for s, r, o in CASES])
def test_a_sharded_network_ends_where_one_process_does(ranks, index: int) -> None:
    alone = train(*CASES[index])
    first, second = ranks[0][index], ranks[1][index]
    for key, expected in alone.items():
        assert torch.equal(first[key], second[key]), f"ranks differ in {key}"
        assert (first[key].double() - expected.double()).abs().max() <= 1e-5, key
