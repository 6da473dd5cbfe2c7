"""The time of the Trainer's loop, as a ratio to a loop on Accelerate that is written by hand.

Both have the same network, method, losses, optimizer, loader and batches. Measured is the loop alone,
from the first batch that is read to the last: a call of ``fit`` also sets up the loader, signals and the
log, some 2 ms, whatever the number of steps.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import mtlkit
from benchmarks.speed.timing import Row, keep_memory, ratio
from mtlkit import Task

STEPS = 40
BATCH = 128
TASKS = (Task.classification("kind", 10), Task.regression("size"))


class _Net(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128)]
        self.backbone = nn.Sequential(*layers)
        self.heads = nn.ModuleDict({task.name: nn.Linear(128, task.outputs or 1) for task in TASKS})
        self.method = mtlkit.create_method(method, TASKS, feature_dim=128)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        views = self.method(self.backbone(x))
        return {name: head(z) for (name, head), z in zip(self.heads.items(), views, strict=True)}


class _Batches(Dataset[Any]):
    """Whole batches by index; notes when the first and the last were read."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(STEPS, BATCH, 64, generator=generator)
        self.kind = (self.x @ torch.randn(64, 10, generator=generator)).argmax(dim=2)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        self.ended = time.perf_counter()
        if index == 0:
            self.begun = self.ended
        x = self.x[index]
        return x, {"kind": self.kind[index], "size": x[:, :1]}


def _loader(batches: _Batches) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=1, collate_fn=itemgetter(0))


def _by_hand(method: str, batches: _Batches) -> Callable[[], object]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = _Net(method)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=1e-4))
    model, optimizer, loader = accelerator.prepare(model, optimizer, _loader(batches))
    cross_entropy, squares = nn.CrossEntropyLoss(), nn.MSELoss()

    def epoch() -> None:
        model.train()
        for x, targets in loader:
            with accelerator.accumulate(model):
                predictions = model(x)
                losses = {
                    "kind": cross_entropy(predictions["kind"], targets["kind"]),
                    "size": squares(predictions["size"], targets["size"]),
                }
                accelerator.backward(model.method.total(losses))
                optimizer.step()
                optimizer.zero_grad()

    return epoch


def _by_trainer(method: str, batches: _Batches) -> Callable[[], object]:
    torch.manual_seed(0)
    model = _Net(method)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=1e-4))
    accelerator = Accelerator(cpu=True)
    trainer = mtlkit.Trainer(
        model, TASKS, optimizer, accelerator, progress=False, logging_steps=1000, monitor_steps=0
    )
    loader = _loader(batches)
    epochs = count(1)

    def epoch() -> None:
        trainer.fit(loader, epochs=next(epochs))

    return epoch


def measure(method: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds from the first to the last batch in every round, of both loops by turns."""
    batches = _Batches()
    loops = {"by hand": _by_hand(method, batches), "Trainer": _by_trainer(method, batches)}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds + 2):
        for name in sorted(loops, reverse=turn % 2 == 0):
            loops[name]()
            if turn > 1:
                seconds[name].append(batches.ended - batches.begun)
    return seconds


def run(rounds: int = 100) -> list[Row]:
    """Return the ratios of the Trainer's seconds to those of the loop by hand, on the same batches."""
    warnings.filterwarnings("ignore", message="no validation set")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()
    rows = []
    for method in ("sum", "rotograd"):
        value = ratio(measure(method, rounds), "Trainer", "by hand")
        rows.append(Row("Trainer, x a loop on Accelerate by hand", method, value, limit=1.03))
    torch.set_num_threads(threads)
    return rows
