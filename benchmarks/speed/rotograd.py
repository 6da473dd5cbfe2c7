"""RotoGrad's cost: against ordinary matrices of the same size, geotorch and a plain ResNet18 step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import mtlkit
from benchmarks.speed.timing import Row, interleave, ratio

BATCH = 128
EVERY_STEP = "rotograd(fold_every=1)"


def _mlp(inputs: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers)


class _Net(nn.Module):
    """A backbone and K heads (one hidden layer of 128); between them a method, matrices or nothing."""

    def __init__(
        self, backbone: nn.Module, width: int, tasks: int, spec: str, *, matrices: bool
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.matrices = nn.ModuleList(
            nn.Linear(width, width, bias=False) for _ in range(tasks * matrices)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1)) for _ in range(tasks)
        )
        self.method = mtlkit.create_method(spec, tasks, feature_dim=width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.backbone(x)
        plain = self.method.is_sum
        views = [z] * len(self.heads) if plain else self.method(z)
        if self.matrices:
            views = [matrix(z) for matrix in self.matrices]
        return self.method.total(
            [
                nn.functional.binary_cross_entropy_with_logits(head(view)[:, 0], y[:, k])
                for k, (head, view) in enumerate(zip(self.heads, views, strict=True))
            ]
        )


def _stepper(net: _Net, batch: tuple[Tensor, Tensor], steps: int = 1) -> Callable[[], None]:
    optimizer = torch.optim.RAdam(mtlkit.param_groups(net, lr=1e-3))

    def run() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            net(*batch).backward()
            optimizer.step()

    return run


def _candidates(width: int, tasks: int, specs: dict[str, str], steps: int = 1) -> dict:
    torch.manual_seed(0)
    batch = (torch.randn(BATCH, width), torch.randint(0, 2, (BATCH, tasks)).float())
    found = {
        "matrices": _stepper(_Net(_mlp(width, width), width, tasks, "sum", matrices=True), batch, steps)
    }
    for name, spec in specs.items():
        net = _Net(_mlp(width, width), width, tasks, spec, matrices=False)
        found[name] = _stepper(net, batch, steps)
    return found


def run(rounds: int = 15) -> list[Row]:
    """Return the table of RotoGrad; every value is a ratio within one interleaved run."""
    torch.set_num_threads(2)
    rows: list[Row] = []

    group = "RotoGrad step, MLP d=m=512, K=10, batch 128, RAdam"
    # eight steps at a time, so that each holds one fold, and two updates of update_every=4
    specs = {
        "rotograd": "rotograd",
        "fold_every=1": EVERY_STEP,
        "update_every=4": "rotate(update_every=4)+scale",
    }
    seconds = interleave(_candidates(512, 10, specs, steps=8), rounds)
    rows.append(Row(group, "/ K ordinary matrices", ratio(seconds, "rotograd", "matrices"), limit=2.2))
    rows.append(
        Row(group, "fold_every=1 / K ordinary matrices", ratio(seconds, "fold_every=1", "matrices"))
    )
    rows.append(
        Row(
            group,
            "update_every=4 / K ordinary matrices",
            ratio(seconds, "update_every=4", "matrices"),
            limit=1.3,
        )
    )
    for width, tasks, limit in ((512, 10, 4.0), (1024, 3, 8.0)):
        specs = {"lie": EVERY_STEP, "geotorch": "rotate(backend=geotorch)+scale"}
        # geotorch is slower once its rotations have left the identity, and RAdam starts after step 5
        seconds = interleave(_candidates(width, tasks, specs), max(3, rounds // 4), warmup=8)
        group = f"RotoGrad step, m={width}, K={tasks}"
        rows.append(
            Row(
                group,
                "backend=geotorch / backend=lie",
                ratio(seconds, "geotorch", "lie"),
                limit=limit,
                at_least=True,
            )
        )
    rows += _resnet(max(3, rounds // 3))
    rows += _fold_every(max(3, rounds // 3))
    for width, tasks, spec in (
        (512, 40, EVERY_STEP),
        (1536, 40, "rotate(blocks=12, fold_every=1)+scale"),
        (128, 10, EVERY_STEP),
        (256, 10, EVERY_STEP),
        (1024, 10, EVERY_STEP),
    ):
        few = max(3, rounds // 4)
        seconds = interleave(_candidates(width, tasks, {"method": spec}), few, warmup=1)
        name = f"{spec}, m={width}, K={tasks}"
        rows.append(Row("RotoGrad / K ordinary matrices", name, ratio(seconds, "method", "matrices")))
    return rows


def _resnet(rounds: int) -> list[Row]:
    """The paper's CIFAR10 setting: ten binary tasks, batches of 128 images."""
    import timm

    torch.manual_seed(0)
    batch = (torch.randn(BATCH, 3, 32, 32), torch.randint(0, 2, (BATCH, 10)).float())
    candidates = {
        name: _stepper(
            _Net(timm.create_model("resnet18", num_classes=0), 512, 10, spec, matrices=False),
            batch,
            steps=8,
        )
        for name, spec in (("plain", "sum"), ("rotograd", "rotograd"))
    }
    seconds = interleave(candidates, rounds, warmup=1)
    group = "RotoGrad step, ResNet18 3x32x32, batch 128, d=512, K=10"
    return [Row(group, "/ plain sum", ratio(seconds, "rotograd", "plain"), limit=1.08)]


def _fold_every(rounds: int) -> list[Row]:
    """Measure ``fold_every=8`` on one thread, where matrix products take the largest part of a step."""
    import timm

    rows = []
    torch.set_num_threads(1)
    for tasks in (3, 10, 100):
        torch.manual_seed(0)
        batch = (torch.randn(32, 3, 32, 32), torch.randint(0, 2, (32, tasks)).float())
        candidates = {}
        for spec in ("sum", EVERY_STEP, "rotograd"):
            net = _Net(timm.create_model("resnet18", num_classes=0), 512, tasks, spec, matrices=False)
            candidates[spec] = _stepper(net, batch, steps=8)
        seconds = interleave(candidates, rounds if tasks < 50 else 3, warmup=1)
        group = f"RotoGrad step, ResNet18 3x32x32, batch 32, d=512, K={tasks}, one thread / plain sum"
        limits = {EVERY_STEP: None, "rotograd": 1.3 if tasks <= 10 else None}
        rows += [Row(group, s, ratio(seconds, s, "sum"), limit=limits[s]) for s in limits]
    torch.set_num_threads(2)
    return rows
