"""What ``test_huggingface.py`` runs in several processes.

Usage: accelerate launch --cpu --num_processes 2 -m tests.integrations.huggingface.run_huggingface FOLDER
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers.distributed import DistributedConfig

import mtlkit
from mtlkit.engine.sharded import is_sharded
from tests.integrations.huggingface.small_models import (
    TASKS,
    TwoHeads,
    causal_model,
    datasets,
    make_trainer,
    sentences,
    texts,
    weights_of,
)

# model, method, micro-batches of a step
CASES = {
    "merged": ("lora", "upgrad(wrt=parameters)", 2),
    "weighed": ("causal", "uw", 1),
    "both": ("causal", "uw+pcgrad(wrt=parameters)", 1),
    "forked": ("two heads", "rotograd", 1),
}


def train(case: str, folder: Any, world: int) -> dict[str, Any]:
    kind, spec, micro = CASES[case]
    options: dict[str, Any] = {
        "per_device_train_batch_size": 8 // world,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": micro,
        "max_steps": 6,
        "mixing": "uniform",
        "optim": "sgd",
        "learning_rate": 0.05,
    }
    if kind == "two heads":
        model: Any = TwoHeads(spec)
        data: dict[str, Any] = {"train_dataset": sentences(), "eval_dataset": sentences(8, seed=1)}
        options["train_sampling_strategy"] = "sequential"
        trainer = make_trainer(model, folder, **data, **options)
    else:
        model = causal_model(lora=kind == "lora")
        data = {"train_dataset": datasets(), "eval_dataset": datasets(7, 5, seed=3)}
        trainer = make_trainer(model, folder, spec, **data, **options)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = [f"{task}_loss" for task in trainer.method.tasks]
    metrics = trainer.evaluate()
    return {
        "weights": {
            **weights_of(model),
            **{f"own {n}": p for n, p in weights_of(trainer.method).items()},
        },
        "losses": [entry[name] for entry in entries for name in names],
        "evaluated": [metrics[f"eval_{name}"] for name in names],
    }


def train_sharded(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Train a causal model that FSDP2 has sharded, by a loop of its own and by the Trainer."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    return {
        "start": weights_of(causal_model()),
        "loop": _sharded_loop(rank, world),
        "trainer": _sharded_trainer(rank, world, folder),
    }


def _shard(model: Any, world: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _sharded_loop(rank: int, world: int) -> dict[str, torch.Tensor]:
    model = causal_model()
    if world > 1:
        _shard(model, world)
    method = mtlkit.create_method("upgrad(wrt=parameters)", TASKS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = {
        task: torch.tensor([s["input_ids"][:4] for s in texts(task, 60) if len(s["input_ids"]) > 3][:32])
        for task in TASKS
    }
    for step in range(4):
        losses = {}
        for task, rows in samples.items():
            batch = rows[8 * step : 8 * step + 8].chunk(world)[rank]
            losses[task] = model(input_ids=batch, labels=batch).loss
        mtlkit.backward(losses, method, parameters=model)
        optimizer.step()
        optimizer.zero_grad()
    return _whole(model)


def _sharded_trainer(rank: int, world: int, folder: str) -> dict[str, torch.Tensor]:
    model = causal_model()
    if world > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        sharded = DistributedConfig(fsdp_size=world)
        model = type(model).from_pretrained(f"{folder}/start", distributed_config=sharded)
        assert is_sharded(model)
    else:
        model.save_pretrained(f"{folder}/start")
    trainer = make_trainer(
        model,
        folder,
        "upgrad(wrt=parameters)",
        train_dataset=datasets(),
        mixing="uniform",
        optim="sgd",
        learning_rate=0.1,
        per_device_train_batch_size=4 // world,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    return _whole(model)


def _whole(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in weights_of(model).items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in CASES:
        found = train(name, sys.argv[1], world=int(os.environ["WORLD_SIZE"]))
        torch.save(found, Path(sys.argv[1]) / f"{name}-{os.environ['RANK']}.pt")
