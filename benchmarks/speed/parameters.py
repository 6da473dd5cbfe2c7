"""Steps with ``wrt=parameters``: groups of parameters, and one forward pass per task.

Both on an MLP of six layers, where each task has samples of its own; groups also on a ResNet18, whose
steps are long beside what a group costs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mtlkit
from benchmarks.speed.steps import Candidate
from benchmarks.speed.timing import Row, interleave, ratio, set_threads

WIDTH, LAYERS, SAMPLES = 512, 6, 16
GROUPED = (3, 10, 100)
FORWARDS = (3, 4, 10, 16, 100)


class _Step:
    """A step with SGD on K x 16 samples, of which every task has its own 16."""

    def __init__(self, spec: str, tasks: int, *, forward_per_task: bool = False) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(tasks))
        self.method = mtlkit.create_method(spec, tasks, shared=self.backbone)
        self.forward_per_task = forward_per_task
        parameters = [*self.backbone.parameters(), *self.heads.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=1e-3)
        self.x = torch.randn(tasks * SAMPLES, WIDTH)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.method.total(self._losses()).backward()
        self.optimizer.step()

    def _losses(self) -> list[Tensor]:
        parts = self.x.split(SAMPLES)
        if self.forward_per_task:
            features = [self.backbone(part) for part in parts]
        else:
            features = list(self.backbone(self.x).split(SAMPLES))
        pairs = zip(self.heads, features, strict=True)
        return [head(z).square().mean() for head, z in pairs]


def run(rounds: int = 15) -> list[Row]:
    """Ratios within one interleaved run for each number of tasks."""
    set_threads(2)
    rows = _groups_of_resnet(rounds)
    for tasks in GROUPED:
        specs = {
            groups: f"pcgrad(wrt=parameters, groups={groups})" for groups in ("all", "layer", "tensor")
        }
        steps = {name: _Step(spec, tasks, forward_per_task=True) for name, spec in specs.items()}
        seconds = interleave(steps, _fewer(rounds, tasks), warmup=1)
        group = f"pcgrad(wrt=parameters), MLP of six layers, K={tasks}, / groups=all"
        limits = {"layer": 1.1, "tensor": None}
        rows += [Row(group, f"groups={n}", ratio(seconds, n, "all"), limit=limits[n]) for n in limits]
    for tasks in FORWARDS:
        steps = {
            "plain": _Step("sum", tasks),
            "one mixed forward": _Step("pcgrad(wrt=parameters)", tasks),
            "one forward per task": _Step("pcgrad(wrt=parameters)", tasks, forward_per_task=True),
        }
        seconds = interleave(steps, _fewer(rounds, tasks), warmup=1)
        group = f"pcgrad(wrt=parameters), tasks with their own samples, K={tasks}, / plain sum"
        for name in ("one mixed forward", "one forward per task"):
            limit = 2.5 if (name, tasks) == ("one forward per task", 16) else None
            rows.append(Row(group, name, ratio(seconds, name, "plain"), limit=limit))
    return rows


def _groups_of_resnet(rounds: int) -> list[Row]:
    rows = []
    for tasks in (3, 10):
        torch.manual_seed(0)
        batch = (torch.randn(32, 3, 32, 32), torch.randint(0, 2, (32, tasks)).float())
        steps = {
            groups: Candidate(f"pcgrad(wrt=parameters, groups={groups})", batch)
            for groups in ("all", "layer")
        }
        seconds = interleave(steps, rounds, warmup=1)
        group = f"pcgrad(wrt=parameters), ResNet18, K={tasks}, / groups=all"
        rows.append(Row(group, "groups=layer", ratio(seconds, "layer", "all"), limit=1.1))
    return rows


def _fewer(rounds: int, tasks: int) -> int:
    return max(3, rounds // 5) if tasks > 50 else rounds
