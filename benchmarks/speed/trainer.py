"""What the Trainer's loop costs over a loop on Accelerate that is written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mtlkit
from benchmarks.speed.timing import Row, interleave, ratio
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


def _collate(samples: list[tuple[Tensor, ...]]) -> tuple[Tensor, dict[str, Tensor]]:
    x, kind, size = zip(*samples, strict=True)
    return torch.stack(x), {"kind": torch.stack(kind), "size": torch.stack(size)}


def _batches() -> list[tuple[Tensor, dict[str, Tensor]]]:
    torch.manual_seed(0)
    x = torch.randn(STEPS * BATCH, 64)
    data = TensorDataset(x, (x @ torch.randn(64, 10)).argmax(dim=1), x[:, :1].tanh())
    return list(DataLoader(data, batch_size=BATCH, collate_fn=_collate))


def _by_hand(method: str, batches: list[tuple[Tensor, dict[str, Tensor]]]) -> Callable[[], object]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = _Net(method)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=1e-4))
    model, optimizer = accelerator.prepare(model, optimizer)
    cross_entropy, squares = nn.CrossEntropyLoss(), nn.MSELoss()

    def epoch() -> None:
        model.train()
        for x, targets in batches:
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


def _by_trainer(method: str, batches: list[tuple[Tensor, dict[str, Tensor]]]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = _Net(method)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=1e-4))
    trainer = mtlkit.Trainer(
        model, TASKS, optimizer, accelerator=Accelerator(cpu=True), progress=False, log_every=1000
    )
    epochs: Iterator[int] = iter(range(1, 10**6))

    def epoch() -> None:
        trainer.fit(batches, epochs=next(epochs))

    return epoch


def run(rounds: int = 21) -> list[Row]:
    """Ratios of the Trainer's seconds to those of the loop by hand, on the same batches."""
    warnings.filterwarnings("ignore", message="no validation set")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    batches = _batches()
    rows = []
    for method in ("sum", "rotograd"):
        seconds = interleave(
            {"by hand": _by_hand(method, batches), "Trainer": _by_trainer(method, batches)}, rounds
        )
        value = ratio(seconds, "Trainer", "by hand")
        rows.append(Row("Trainer, x a loop on Accelerate by hand", method, value, limit=1.03))
    torch.set_num_threads(threads)
    return rows
