"""A whole run from its settings: data, network, optimizer, training, and the test at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from mtlkit.errors import ConfigError, SpecError, unknown_name
from mtlkit.spec import parse_spec
from mtlkit.tasks import Task
from mtlkit.training.config import TrainConfig
from mtlkit.training.groups import METHOD_GROUP, param_groups, rotation_schedule
from mtlkit.training.loaders import collate
from mtlkit.training.trainer import FitResult, Trainer

__all__ = ["RunResult", "build_trainer", "make_optimizer", "run"]

_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
}
_OPTIONS = {
    "adam": ("betas", "eps", "amsgrad"),
    "adamw": ("betas", "eps", "amsgrad"),
    "radam": ("betas", "eps"),
    "sgd": ("momentum", "dampening", "nesterov"),
}


@dataclass
class RunResult:
    """How a run ended, and what the best checkpoint does on the test set."""

    fit: FitResult
    test: dict[str, dict[str, float]] | None
    folder: Path


def run(config: TrainConfig, *, resume: str | None = None, progress: bool | None = None) -> RunResult:
    """Train as the settings say, then report on the test set with the best checkpoint."""
    trainer, loaders = build_trainer(config, progress=progress)
    if trainer.accelerator.is_main_process:
        config.folder.mkdir(parents=True, exist_ok=True)
        _write(config.folder / "config.yaml", config.to_yaml())
    epochs = 10 if config.epochs is None and config.steps is None else config.epochs
    fit = trainer.fit(loaders["train"], loaders["val"], epochs=epochs, steps=config.steps, resume=resume)
    test = None
    if config.test and loaders["test"] is not None:
        trainer.load_best()
        test = trainer.evaluate(loaders["test"])
        if trainer.accelerator.is_main_process:
            _write(config.folder / "test.json", json.dumps(test, indent=2))
    return RunResult(fit, test, config.folder)


def build_trainer(
    config: TrainConfig, *, progress: bool | None = None
) -> tuple[Trainer, dict[str, DataLoader[Any] | None]]:
    """The Trainer of these settings, and the loaders of train, val and test."""
    import mtlkit
    from mtlkit.data import load_dataset

    dataset = load_dataset(config.data, data_dir=config.data_dir, seed=config.seed)
    tasks = [Task.of(info) for info in dataset.tasks]
    architecture = config.architecture or getattr(dataset, "default_architecture", None)
    if not architecture:
        raise ConfigError(f"data set {config.data!r} has no network of its own; set 'architecture'")
    torch.manual_seed(config.seed)
    model = mtlkit.create_architecture(architecture, tasks, method=config.method)
    optimizer = make_optimizer(config, model)
    loaders = {name: _loader(dataset, name, config) for name in ("train", "val", "test")}
    if loaders["train"] is None:
        raise ConfigError(f"data set {config.data!r} has no samples to train on")
    trainer = Trainer(
        model,
        tasks,
        optimizer,
        scheduler=_schedulers(config, optimizer, loaders["train"]),
        output=config.folder,
        precision=config.precision,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        on_nonfinite=config.on_nonfinite,
        validate_every=config.validate_every,
        checkpoint_every=config.checkpoint_every,
        keep_checkpoints=config.keep_checkpoints,
        best_by=config.best_by,
        early_stop=config.early_stop,
        log_every=config.log_every,
        monitor_every=config.monitor_every,
        trackers=("tensorboard",) if config.tensorboard else (),
        seed=config.seed,
        progress=progress,
    )
    # dropout must differ between processes; the weights, drawn before, must not
    torch.manual_seed(config.seed + 1 + trainer.accelerator.process_index)
    return trainer, loaders


def make_optimizer(config: TrainConfig, model: torch.nn.Module) -> Optimizer:
    """The optimizer of these settings, with the method's parameters in a group of their own."""
    parts = parse_spec(config.optimizer)
    name = parts[0].name
    if len(parts) > 1 or name not in _OPTIMIZERS:
        raise unknown_name("optimizer", config.optimizer, _OPTIMIZERS)
    for option in parts[0].options:
        if option not in _OPTIONS[name]:
            raise unknown_name(f"option of {name}", option, _OPTIONS[name])
    groups = param_groups(
        model, lr=config.lr, method_lr=config.method_lr, weight_decay=config.weight_decay
    )
    try:
        return _OPTIMIZERS[name](groups, **parts[0].options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {config.optimizer!r}: {error}") from None


def _schedulers(config: TrainConfig, optimizer: Optimizer, train: Iterable[Any]) -> list[Any]:
    made: list[Any] = []
    if config.schedule == "cosine":
        steps = config.steps
        if steps is None:
            epochs = 10 if config.epochs is None else config.epochs
            steps = epochs * -(-len(train) // config.accumulate)  # type: ignore[arg-type]
        made.append(CosineAnnealingLR(optimizer, max(steps, 1)))
    if config.rotation_decay is not None:
        if all(group.get("name") != METHOD_GROUP for group in optimizer.param_groups):
            raise SpecError(f"rotation_decay is set, but the method {config.method!r} has no parameters")
        made.append(rotation_schedule(optimizer, config.rotation_decay))
    return made


def _loader(dataset: Any, split: str, config: TrainConfig) -> DataLoader[Any] | None:
    samples = getattr(dataset, split, None)
    if samples is None or len(samples) == 0:
        return None
    # a last batch of one sample has no statistics for batch normalisation
    drop_last = split == "train" and len(samples) >= config.batch_size
    if hasattr(dataset, "loader"):
        loader: DataLoader[Any] = dataset.loader(
            split,
            config.batch_size,
            drop_last=drop_last,
            num_workers=config.workers,
            seed=config.seed,
        )
        return loader
    return DataLoader(
        samples,
        batch_size=config.batch_size,
        shuffle=split == "train",
        drop_last=drop_last,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        collate_fn=collate,
    )


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
