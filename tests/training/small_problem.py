"""A small network, data and tasks that follow the interfaces of architectures and data sets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import mtlkit
from mtlkit import Task

TASKS = (Task.classification("label", 3), Task.regression("value"))


class SmallNet(nn.Module):
    def __init__(self, method: str = "sum", dropout: float = 0.0, tasks=TASKS) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8))
        self.heads = nn.ModuleDict({task.name: nn.Linear(8, task.outputs or 1) for task in tasks})
        self.method = mtlkit.create_method(method, tasks, feature_dim=8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        views = self.method(self.backbone(x))
        return {t.name: self.heads[t.name](z) for t, z in zip(self.tasks, views, strict=True)}

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.backbone.parameters())

    def task_parameters(self, name: str) -> list[nn.Parameter]:
        return list(self.heads[name].parameters())


class PlainNet(nn.Module):
    """Without a method: the losses are added."""

    def __init__(self, tasks=TASKS) -> None:
        super().__init__()
        self.backbone = nn.Linear(6, 8)
        self.heads = nn.ModuleDict({task.name: nn.Linear(8, task.outputs or 1) for task in tasks})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.backbone(x)
        return {name: head(z) for name, head in self.heads.items()}


class SmallData(Dataset):
    """``missing`` is the share of labels of "label" that are left out, as None."""

    def __init__(self, size: int = 40, seed: int = 0, missing: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=generator)
        truth = torch.Generator().manual_seed(99)
        weights = torch.randn(6, 4, generator=truth)
        scores = self.x @ weights
        self.labels = scores[:, :3].argmax(dim=1)
        self.values = scores[:, 3:].tanh()
        self.known = torch.rand(size, generator=generator) >= missing

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        label = self.labels[index] if self.known[index] else None
        return self.x[index], {"label": label, "value": self.values[index]}


def make_loader(size: int = 40, batch: int = 8, seed: int = 0, missing: float = 0.0, **options):
    return DataLoader(SmallData(size, seed, missing), batch_size=batch, **{"shuffle": True, **options})


class SmallStream(IterableDataset):
    """The samples of :class:`SmallData`, one after the other."""

    def __init__(self, **options) -> None:
        self.data = SmallData(**options)

    def __iter__(self):
        return (self.data[index] for index in range(len(self.data)))


def make_stream(size: int, seed: int = 0, missing: float = 0.0):
    return DataLoader(SmallStream(size=size, seed=seed, missing=missing), batch_size=8)


def make_trainer(
    method: str = "sum",
    dropout: float = 0.0,
    lr: float = 0.02,
    preference: str | None = None,
    **options,
) -> mtlkit.Trainer:
    torch.manual_seed(0)
    model: nn.Module = SmallNet(method, dropout)
    if preference is not None:
        spec = "hard_sharing(backbone=mlp(16, 8, inputs=6))"
        model = mtlkit.create_architecture(spec, TASKS, method=method, preference=preference)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=lr))
    options.setdefault("progress", False)
    return mtlkit.Trainer(model, TASKS, optimizer, **options)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.state_dict().values()])


def records(folder: Path, kind: str) -> list[dict]:
    """Lines of this kind in a run's log."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


class Poisoned(nn.Module):
    """Infinite loss or gradient of "label", in the batches that are named."""

    def __init__(self, net: nn.Module, batches: set[int], gradient: bool) -> None:
        super().__init__()
        self.net, self.method = net, net.method
        self.batches, self.gradient, self.count = batches, gradient, 0

    def forward(self, x):
        predictions = self.net(x)
        if self.training:
            if self.count in self.batches:
                if self.gradient:
                    predictions["label"].register_hook(lambda g: g * math.inf)
                else:
                    predictions["label"] = predictions["label"] * math.nan
            self.count += 1
        return predictions
