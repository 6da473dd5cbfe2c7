"""One experiment from its settings: data, network, optimizer, training and the final test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from mtlkit.config.files import write_text
from mtlkit.config.registry import methods
from mtlkit.config.yaml_files import parse_yaml, read_yaml
from mtlkit.data.collate import collate
from mtlkit.errors import ConfigError, SpecError, shorten
from mtlkit.tasks import Task
from mtlkit.training.accelerators import end_trackers
from mtlkit.training.checkpoints import Checkpoints, seed_rng
from mtlkit.training.config import RESUMABLE, TrainConfig
from mtlkit.training.optimizers import (
    METHOD_GROUP,
    build_optimizer,
    make_schedule,
    paper_decay,
    param_groups,
)
from mtlkit.training.state import FitResult, refuse_old_run
from mtlkit.training.trainer import Trainer


@dataclass
class RunResult:
    """How a run ended.

    Attributes:
        fit: how training ended.
        test: metrics of the best checkpoint on the test set, by task; None without a test.
        folder: where the run is.
    """

    fit: FitResult
    test: dict[str, dict[str, float]] | None
    folder: Path


Change = Callable[[torch.nn.Module, Sequence[Task]], tuple[torch.nn.Module, Sequence[Task]]]


def run(
    config: TrainConfig,
    *,
    resume: str | None = None,
    progress: bool | None = None,
    dataset: Any = None,
    change: Change | None = None,
    stop_at: int | None = None,
) -> RunResult:
    """Train as the settings say, then report on the test set with the best checkpoint.

    Args:
        config: the settings.
        resume: as for :meth:`Trainer.fit`.
        progress: show a progress bar; None shows it on a terminal, and a line per epoch elsewhere.
        dataset: the data set, where it is loaded already.
        change: given the fresh network and the tasks, returns those to train.
        stop_at: end after this step, as if interrupted: schedules are those of the whole run.
    """
    from mtlkit.training.record import describe_run, write_record

    if dataset is None:
        dataset = load_data(config)
    trainer, loaders = build_trainer(config, progress=progress, dataset=dataset, change=change)
    _check_folder(config, resume)
    record = describe_run(trainer.model, trainer.tasks, dataset, config.plugins)
    if trainer.accelerator.is_main_process:
        write_text(config.folder / "config.yaml", config.to_yaml())
        write_record(config.folder, record, dataset)
    epochs = 10 if config.epochs is None and config.steps is None else config.epochs
    limits = [steps for steps in (config.steps, stop_at) if steps is not None]
    steps = min(limits, default=None)
    test = None
    try:
        fit = trainer.fit(loaders["train"], loaders["val"], epochs=epochs, steps=steps, resume=resume)
        if trainer.accelerator.is_main_process:
            facts = {"steps": fit.step, "best_step": fit.best_step}
            write_record(config.folder, record, trained=facts)
        if config.test and loaders["test"] is not None:
            trainer.load_best()
            test = trainer.evaluate(loaders["test"])
            if trainer.accelerator.is_main_process:
                write_text(config.folder / "test.json", json.dumps(test, indent=2))
    finally:
        figures = {f"test/{t}/{m}": v for t, row in (test or {}).items() for m, v in row.items()}
        end_trackers(trainer.accelerator, config.model_dump(), figures, trainer.step)
    return RunResult(fit, test, config.folder)


def _check_folder(config: TrainConfig, resume: str | None) -> None:
    """Refuse to write over another run, or to go on with one whose settings were others."""
    checkpoints = Checkpoints(config.folder / "checkpoints")
    if resume is None:
        refuse_old_run(checkpoints)
        return
    origin = config.folder if resume == "auto" else Path(resume).absolute().parent.parent
    path = origin / "config.yaml"
    if not path.is_file() or (resume == "auto" and not checkpoints.paths()):
        return
    before, now = read_yaml(path), parse_yaml(config.to_yaml(), "these settings")
    changed = [key for key in now if key in before and key not in RESUMABLE and before[key] != now[key]]
    if changed:
        told = "; ".join(f"{key} was {shorten(before[key])}, is {shorten(now[key])}" for key in changed)
        raise ConfigError(
            f"the run in {origin} had other settings: {told}. Resume with the same ones (only its "
            "length, its log and its devices may change), or start a new run in another folder"
        )


def build_trainer(
    config: TrainConfig,
    *,
    progress: bool | None = None,
    dataset: Any = None,
    change: Change | None = None,
) -> tuple[Trainer, dict[str, DataLoader[Any] | None]]:
    """The Trainer of these settings, and the loaders of train, val and test, where that is wanted."""
    model, tasks, dataset = build_model(config, dataset=dataset, change=change)
    if hasattr(dataset, "only"):
        dataset = dataset.only([task.name for task in tasks])
    optimizer = make_optimizer(config, model)
    splits = ("train", "val", *(("test",) if config.test else ()))
    loaders = {"test": None, **{name: _loader(dataset, name, config) for name in splits}}
    if loaders["train"] is None:
        raise ConfigError(f"data set {config.data!r} has no samples to train on")
    trainer = Trainer(
        model,
        tasks,
        optimizer,
        scheduler=_schedule(config, optimizer, loaders["train"], lenient=change is not None),
        output=config.folder,
        mixed_precision=config.mixed_precision,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_grad_norm=config.max_grad_norm,
        on_nonfinite=config.on_nonfinite,
        eval_steps=config.eval_steps,
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        best_by=config.best_by,
        early_stopping_patience=config.early_stopping_patience,
        logging_steps=config.logging_steps,
        monitor_steps=config.monitor_steps,
        log_with=config.log_with,
        seed=config.seed,
        progress=progress,
    )
    # dropout must differ between processes; the weights, drawn before, must not
    seed_rng(config.seed + 1 + trainer.accelerator.process_index)
    return trainer, loaders


def load_data(config: TrainConfig) -> Any:
    """The data set of these settings."""
    from mtlkit.data import load_dataset

    return load_dataset(config.data, data_dir=config.data_dir, seed=config.seed)


def build_model(
    config: TrainConfig, *, dataset: Any = None, change: Change | None = None
) -> tuple[torch.nn.Module, Sequence[Task], Any]:
    """The network, its tasks and the data set; the weights depend on the seed alone."""
    import mtlkit

    if dataset is None:
        dataset = load_data(config)
    tasks: Sequence[Task] = [Task.of(task) for task in dataset.tasks]
    architecture = config.architecture or getattr(dataset, "default_architecture", None)
    if config.architecture and hasattr(dataset, "complete_architecture"):
        architecture = dataset.complete_architecture(config.architecture)
    if not architecture:
        raise ConfigError(f"data set {config.data!r} has no network of its own; set 'architecture'")
    seed_rng(config.seed)
    method: Any = methods.with_seed(config.method, config.seed)
    model: torch.nn.Module = mtlkit.create_architecture(architecture, tasks, method=method)
    if change is not None:
        model, tasks = change(model, tasks)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    if config.compile:
        model.compile()  # in place: parameters and checkpoints keep their names
    return model, tasks, dataset


def make_optimizer(config: TrainConfig, model: torch.nn.Module) -> Optimizer:
    """The optimizer of these settings, with the method's parameters in a group of their own."""
    groups = param_groups(
        model, lr=config.lr, method_lr=config.method_lr, weight_decay=config.weight_decay
    )
    return build_optimizer(config.optimizer, groups, config.method_optimizer)


def _schedule(
    config: TrainConfig, optimizer: Optimizer, train: Iterable[Any], lenient: bool = False
) -> LambdaLR | None:
    epoch_steps = -(-len(train) // config.gradient_accumulation_steps)  # type: ignore[arg-type]
    epochs = 10 if config.epochs is None and config.steps is None else config.epochs
    ends = [config.steps, None if epochs is None else epochs * epoch_steps]
    steps = min(end for end in ends if end is not None)
    decay = 1.0
    if config.rotation_decay is not None:
        if any(group.get("name") == METHOD_GROUP for group in optimizer.param_groups):
            auto = config.rotation_decay == "auto"
            decay = paper_decay(steps) if auto else float(config.rotation_decay)
        elif not lenient:
            raise SpecError(f"rotation_decay is set, but the method {config.method!r} has no parameters")
    return make_schedule(config.schedule, optimizer, steps, epoch_steps, decay)


def _loader(dataset: Any, split: str, config: TrainConfig) -> DataLoader[Any] | None:
    samples = getattr(dataset, split, None)
    if samples is None or len(samples) == 0:
        return None
    # a last batch of one sample has no statistics for batch normalization
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
