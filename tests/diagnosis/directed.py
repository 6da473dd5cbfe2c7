"""Tasks whose gradients at the features are known by hand, in every step."""

from __future__ import annotations

import torch
from torch import nn

import mtlkit
from mtlkit import Task

BATCH = 4


class LinearLoss:
    """Mean over the samples of the prediction's product with a direction, which is its gradient."""

    def __init__(self, direction: torch.Tensor) -> None:
        self.direction = direction

    def __call__(self, prediction, target):
        return (prediction @ self.direction).mean() + 1.0


class Directed(nn.Module):
    """Every task is given its view of the features as it is; those in ``cut`` get a copy without graph."""

    def __init__(self, tasks, method="sum", cut=(), dead=0) -> None:
        super().__init__()
        self.names = [task.name for task in tasks]
        self.backbone = nn.Linear(4, 4)
        self.cut = cut
        self.mask = torch.tensor([0.0 if k < dead else 1.0 for k in range(4)])
        self.scale = nn.Parameter(torch.ones(()))
        self.method = mtlkit.create_method(method, self.names, feature_dim=4)

    def forward(self, x):
        views = dict(zip(self.names, self.method(self.backbone(x) * self.mask), strict=True))
        return {n: self.scale * v.detach() if n in self.cut else v for n, v in views.items()}


def directed_tasks(**directions) -> list[Task]:
    return [
        Task(name, LinearLoss(torch.tensor(d, dtype=torch.float32))) for name, d in directions.items()
    ]


def batches(tasks, count=5, labeled=None):
    """Batches; ``labeled`` gives the rows that have a label, by task name."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        targets = {}
        for task in tasks:
            target = torch.zeros(BATCH)
            if labeled is not None:
                target[:] = torch.nan
                target[labeled[task.name]] = 0.0
            targets[task.name] = target
        made.append((torch.randn(BATCH, 4, generator=generator), targets))
    return made


def rules(diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def finding(diagnosis, rule):
    return next(found for found in diagnosis.findings if found.rule == rule)
