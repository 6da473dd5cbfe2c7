"""Train on one source per task, as a program of its own.

Usage: python -m tests.training.run_sources FOLDER [PAUSE]
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from mtlkit.data import mix
from tests.training.small_problem import SmallData, flat, make_trainer

CASES = {
    "all": {"mixing": "temperature(2)", "batches": "all"},
    "one": {"mixing": "uniform", "batches": "one"},
    "few": {"mixing": "temperature(4)", "batches": "all"},  # one process lacks a task in every batch
}
FEW = {"sizes": (50, 2), "batch": (3, 1)}


class OneTask(SmallData):
    """The small problem with the targets of one task, as a plain target."""

    def __init__(self, task: str, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.task = task

    def __getitem__(self, index: int):
        inputs, targets = super().__getitem__(index)
        return inputs, targets[self.task]


def loaders(sizes=(50, 18), batch=(7, 5), shuffle=True) -> dict[str, DataLoader]:
    return {
        task: DataLoader(OneTask(task, size, seed=number), batch_size=rows, shuffle=shuffle)
        for number, (task, size, rows) in enumerate(zip(("label", "value"), sizes, batch, strict=True))
    }


def train(case: str, output: Path | None = None, pause: float = 0.0, **fit):
    """The trained parameters, the inputs of all steps on this process, and the metrics of a test."""
    trainer = make_trainer(
        "pcgrad(wrt=parameters)",
        dropout=0.0,
        output=output,
        save_steps=3,
        seed=5,
        gradient_accumulation_steps=2 if case == "few" else 1,
    )
    seen = []
    hook = trainer.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    if pause:
        trainer.model.register_forward_hook(lambda *_: time.sleep(pause))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = loaders(**FEW) if case == "few" else loaders()
        trainer.fit(mix(own, **CASES[case], seed=5), **{"epochs": 3, **fit})
    hook.remove()
    metrics = trainer.evaluate(loaders((11, 6), (4, 4), shuffle=False))
    return {"parameters": flat(trainer.model), "seen": seen, "metrics": metrics, "step": trainer.step}


def main(folder: Path, pause: float) -> None:
    torch.set_num_threads(1)
    for case in CASES:
        result = train(case, folder / case, pause, resume="auto")
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        torch.save(result, folder / f"{case}-{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
