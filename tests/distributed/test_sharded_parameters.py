"""Merged gradients of parameters that FSDP2 has sharded equal those of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mtlkit
from mtlkit.errors import UsageError
from tests.distributed.launch import run_processes

TASKS, WIDTH, BATCH, STEPS = 3, 6, 8, 5


@dataclass(frozen=True)
class Case:
    spec: str
    root: bool = True
    """Whether the root is sharded, or only the blocks."""
    blocks: bool = True
    """Whether the blocks are sharded, or only the root."""
    train: str = "all"
    """Which parameters are trained: all, all but a frozen block, or adapters alone."""
    heads: bool = False
    """One head per task, instead of one for all."""
    missing: bool = False
    """The second half of the processes never has the last task."""
    micro: int = 1
    """Micro-batches of a step."""
    clip: float = 0.0
    late: bool = False
    """The first task has labels in the last micro-batch only."""
    given: str = "model"
    """What is given as parameters, see ``chosen``."""
    scale: float = 1.0
    dtype: torch.dtype = torch.float64


CASES = [
    Case("upgrad(wrt=parameters)"),
    Case("upgrad(wrt=parameters)", root=False),
    Case("pcgrad(wrt=parameters)", heads=True),
    Case("mgda(wrt=parameters)", train="frozen"),
    Case("imtl_g(wrt=parameters)", train="adapters", given="listed"),
    Case("gradnorm(wrt=parameters)"),
    Case("gradnorm(wrt=parameters)", root=False, heads=True),
    Case("uw+pcgrad(wrt=parameters)"),
    Case("uw+pcgrad(wrt=parameters)", root=False),
    Case("dwa+cagrad(wrt=parameters)", missing=True),
    Case("upgrad(wrt=parameters)", missing=True, micro=2),
    Case("gradvac(wrt=parameters,groups=layer)", scale=1024.0),
    Case("nash_mtl(wrt=parameters)", micro=2, clip=0.5),
    Case("upgrad(wrt=parameters)", dtype=torch.float32),
    Case("gradvac(wrt=parameters)", micro=2, late=True),
    Case("upgrad(wrt=parameters)", blocks=False, given="part"),
    Case("upgrad(wrt=parameters)", given="named"),
    Case("gradvac(wrt=parameters)", blocks=False, given="named", missing=True),
    Case("upgrad(wrt=parameters)", given="gathered"),
    Case("gradvac(wrt=parameters)", given="named_lists", micro=2),
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.adapter = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return z + torch.tanh(self.linear(z)) + self.adapter(z)


class Net(nn.Module):
    """A residual network; the losses are of one head, or of one per task."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, TASKS) for _ in range(TASKS if case.heads else 1))
        self.method = mtlkit.create_method(case.spec, TASKS, feature_dim=WIDTH)
        for name, parameter in self.named_parameters():
            if case.train == "frozen" and name.startswith("blocks.1."):
                parameter.requires_grad_(False)
            if case.train == "adapters" and not name.startswith("method"):
                parameter.requires_grad_("adapter" in name)

    def forward(self, x: Tensor) -> list[Tensor]:
        for block in self.blocks:
            x = block(x)
        outputs = [head(x) for head in self.heads]
        return [outputs[task % len(outputs)][:, task] * 1.0 for task in range(TASKS)]


def chosen(given: str, net: Net, listed: list[Tensor]) -> Any:
    """The parameters to be merged, of which FSDP has gathered those of the root after the forward."""
    return {
        "model": net,
        "listed": listed,  # before the forward
        "part": net.blocks,
        "named": {"blocks": net.blocks, "heads": net.heads},
        "gathered": net.parameters(),
        "named_lists": {"blocks": net.blocks.parameters(), "heads": net.heads.parameters()},
    }[given]


def shard(
    net: Net, mesh: tuple[int, ...], *, root: bool = True, blocks: bool = True, **options: Any
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(mesh) :]
    options["mesh"] = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    for block in net.blocks if blocks else ():
        fully_shard(block, **options)
    if root:
        fully_shard(net, **options)


def losses_of(outputs: list[Tensor], labels: Tensor) -> list[Tensor | None]:
    """Sums over the labeled samples by the number of all: their mean over processes is that of one."""
    terms = [((output - 1).square() * (task + 1)) for task, output in enumerate(outputs)]
    found = zip(terms, labels.unbind(1), strict=True)
    return [(term * label).mean() if label.any() else None for term, label in found]


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train(case: Case, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """The parameters and buffers after a few steps, put together again."""
    torch.manual_seed(7)
    net = Net(case).to(case.dtype)
    if world > 1:
        shard(net, (world,), root=case.root, blocks=case.blocks)
    trained = [p for name, p in net.named_parameters() if p.requires_grad and "method" not in name]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
    generator = torch.Generator().manual_seed(3)
    size = BATCH // world
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro in range(case.micro):
            x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64).to(case.dtype)
            labels = torch.ones(BATCH, TASKS, dtype=torch.bool)
            if case.missing:
                labels[BATCH // 2 :, -1] = False
            if case.late and micro < case.micro - 1:
                labels[:, 0] = False
            mine = slice(rank * size, (rank + 1) * size)
            losses = losses_of(net(x[mine]), labels[mine])
            mtlkit.backward(
                losses,
                net.method,
                chosen(case.given, net, trained),
                merge=micro == case.micro - 1,
                gradient=torch.tensor(case.scale / case.micro, dtype=case.dtype),
            )
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad /= case.scale
        if case.clip:
            nn.utils.clip_grad_norm_(trained, case.clip)
        optimizer.step()
    return {name: whole(value) for name, value in net.state_dict().items()}


def gradients_by_task(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The gradient of a bfloat16 network, and what the merge makes of one plain backward per task."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    torch.manual_seed(7)
    net = Net(Case("upgrad(wrt=parameters)"))
    shard(net, (world,), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    x, labels = torch.randn(BATCH, WIDTH), torch.ones(BATCH, TASKS, dtype=torch.bool)

    def flat() -> Tensor:
        found = torch.cat([whole(p.grad).flatten() for p in net.parameters()])
        net.zero_grad()
        return found

    rows = []
    for task in range(TASKS):
        losses_of(net(x), labels)[task].backward()
        rows.append(flat())
    mtlkit.backward(losses_of(net(x), labels), net.method, net)
    return flat(), net.method.combine(torch.stack(rows))


def refusals(rank: int, world: int) -> list[str]:
    """What is raised for calls that cannot be merged, on every process."""
    found = []
    x, labels = torch.randn(BATCH, WIDTH), torch.ones(BATCH, TASKS, dtype=torch.bool)
    attempts = [
        (Case("graddrop(wrt=parameters)"), (world,), labels),
        (Case("rotate+upgrad(wrt=parameters)"), (world,), labels),
        (Case("upgrad(wrt=parameters)"), (1, world), labels),
        (Case("upgrad(wrt=parameters)"), (world,), labels & (rank == 0)),
        (
            Case("upgrad(wrt=parameters)", heads=True),
            (world,),
            labels & torch.tensor([rank == 0, True, True]),
        ),
    ]
    for case, mesh, present in attempts:
        net = Net(case)
        shard(net, mesh)
        with pytest.raises(UsageError) as caught:
            mtlkit.backward(losses_of(net(x), present), net.method, net)
        found.append(str(caught.value))
    net = Net(Case("upgrad(wrt=parameters)", heads=True))
    shard(net, (world,))
    listed = list(net.parameters())
    with pytest.raises(UsageError) as caught:
        present = labels & torch.tensor([rank == 0, rank == 1, True])
        mtlkit.backward(losses_of(net(x), present), net.method, listed)
    found.append(str(caught.value))
    for root in (True, False):  # the parameters of the head are sharded, or whole on every process
        net = Net(Case("upgrad(wrt=parameters)"))
        shard(net, (world,), root=root)
        net.heads[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
        with pytest.raises(UsageError) as caught:
            mtlkit.backward(losses_of(net(x), labels), net.method, net)
        found.append(str(caught.value))
    return found


def train_all(rank: int, world: int, cases: list[Case]) -> list[dict[str, Tensor]]:
    return [train(case, rank, world) for case in cases]


def mixed_and_refused(rank: int, world: int) -> tuple[tuple[Tensor, Tensor], list[str]]:
    return gradients_by_task(rank, world), refusals(rank, world)


@pytest.mark.parametrize(
    ("world", "cases"), [(2, CASES), pytest.param(4, CASES[::4], marks=pytest.mark.slow)]
)
def test_sharded_parameters_end_where_those_of_one_process_do(world: int, cases: list[Case]) -> None:
    ranks = run_processes(train_all, cases, world=world)
    for index, case in enumerate(cases):
        tolerance = 1e-9 if case.dtype == torch.float64 else 1e-5
        for name, expected in train(case).items():
            found = [rank[index][name] for rank in ranks]
            assert all(torch.equal(one, found[0]) for one in found), f"{case}: {name} differs"
            assert (found[0] - expected).abs().max() <= tolerance, f"{case}: {name}"


@pytest.fixture(scope="module")
def two_processes() -> list[tuple[tuple[Tensor, Tensor], list[str]]]:
    return run_processes(mixed_and_refused)


def test_a_mixed_precision_policy_keeps_the_merge_of_its_gradients(two_processes) -> None:
    for (merged, expected), _ in two_processes:
        assert (merged - expected).norm() <= 1e-5 * expected.norm()


def test_what_cannot_be_merged_is_refused_on_every_process(two_processes) -> None:
    words = ["whole gradients", "rotate", "dimension", "no loss"]
    words += ["0 * prediction", "0 * prediction", "hooks", "hooks"]
    for _, raised in two_processes:
        assert all(word in message for word, message in zip(words, raised, strict=True)), raised
