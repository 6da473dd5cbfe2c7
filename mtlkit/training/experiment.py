"""Run one training from its settings: data, network, optimizer, training and the final test."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from mtlkit.architectures.create import create_architecture
from mtlkit.config.files import write_text
from mtlkit.config.registry import methods
from mtlkit.config.settings import describe_changes
from mtlkit.config.yaml_files import parse_yaml, read_yaml
from mtlkit.data.collate import collate
from mtlkit.errors import ConfigError, SpecError, shorten
from mtlkit.tasks import Task
from mtlkit.training.accelerators import choose_device, end_trackers
from mtlkit.training.checkpoints import Checkpoints, check_resume, load_checkpoint, seed_rng
from mtlkit.training.config import RESUMABLE, TrainConfig
from mtlkit.training.optimizers import (
    METHOD_GROUP,
    build_optimizer,
    describe_groups,
    make_schedule,
    paper_decay,
    param_groups,
)
from mtlkit.training.state import FitResult, refuse_old_run
from mtlkit.training.trainer import Trainer

_PASSED_ON = (
    *("mixed_precision", "gradient_accumulation_steps", "max_grad_norm", "clip", "forward_per_task"),
    *("on_nonfinite", "save_steps", "best_by", "logging_steps", "monitor_steps", "log_with", "seed"),
)
"""Settings that the Trainer has, too."""

Metrics = dict[str, dict[str, float]]
Change = Callable[[torch.nn.Module, Sequence[Task]], tuple[torch.nn.Module, Sequence[Task]]]


@dataclass
class RunResult:
    """The result of a run.

    Attributes:
        fit: result of the training.
        test: test metrics of the best checkpoint by task; None without a test.
        folder: output folder.
        model: network with the weights of the best checkpoint, in evaluation mode.

    >>> import torch
    >>> from mtlkit.training import FitResult
    >>> from mtlkit.training.experiment import RunResult
    >>> last = {"left": {"loss": 0.3, "accuracy": 0.9}}
    >>> fit = FitResult(90, 3, last, best_step=90, best_checkpoint=None, stopped_early=False)
    >>> result = RunResult(fit, test=None, folder=Path("runs/x"), model=torch.nn.Identity())
    >>> result.metrics["left"]["accuracy"]
    0.9
    """

    fit: FitResult
    test: Metrics | None
    folder: Path
    model: torch.nn.Module = field(repr=False)

    @property
    def metrics(self) -> Metrics:
        """Test metrics by task; without a test, those of the last validation."""
        return self.fit.validation if self.test is None else self.test


class Length(NamedTuple):
    """The length of a run, which ends when the first of its limits is reached."""

    epochs: int | None
    steps: int | None
    eval_steps: int | None
    patience: int | None
    epoch_steps: int
    """Steps of an epoch."""

    @property
    def last_step(self) -> int:
        """The last step, unless early stopping ends the run before."""
        ends = [self.steps, None if self.epochs is None else self.epochs * self.epoch_steps]
        return min(end for end in ends if end is not None)


def plan_length(config: TrainConfig, dataset: Any, batches: int) -> Length:
    """Return the length of a run with this number of batches per epoch.

    By default, it is ten epochs; if ``dataset.minimum_steps`` is larger, it is that many steps, with
    early stopping after ten validations without progress.
    """
    epochs, steps, every = config.epochs, config.steps, config.eval_steps
    patience = config.early_stopping_patience
    epoch_steps = math.ceil(batches / config.gradient_accumulation_steps)
    if epochs is None and steps is None:
        least = int(getattr(dataset, "minimum_steps", 0))
        if 10 * epoch_steps >= least:
            epochs = 10
        else:
            steps, every, patience = least, every or max(100, epoch_steps), patience or 10
    return Length(epochs, steps, every, patience, epoch_steps)


def train(
    config: TrainConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    resume: str | None = None,
    progress: bool | None = None,
    dataset: Any = None,
    **settings: Any,
) -> RunResult:
    """Train one network with one method, as ``mtlkit train`` does.

    Args:
        config: settings by name, a YAML file, or a :class:`TrainConfig`.
        resume: ``"auto"`` resumes the run in the output folder, if there is one; or a checkpoint.
        progress: whether to show a progress bar; None shows one on a terminal, and lines elsewhere.
        dataset: a data set object, instead of the setting ``data``.
        settings: further settings, which override those of ``config``: the flags of the command line
            with underscores, such as ``batch_size=128``.

    Returns:
        The result, with the trained ``model``, its ``metrics`` and the ``folder`` of the run.

    >>> import tempfile, mtlkit
    >>> data = "multidigits(train=64, val=16, test=16)"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = mtlkit.train(
    ...         data=data, method="pcgrad", epochs=1, output=folder, progress=False
    ...     )
    >>> result.fit.step
    1
    >>> sorted(result.metrics)
    ['digit_sum', 'left', 'parity', 'pixels', 'right']
    """
    source = "train"
    if isinstance(config, str | os.PathLike):
        config, source = read_yaml(config), str(config)
    if isinstance(config, TrainConfig):
        config = config.model_dump(exclude_unset=True)
    given = {**(config or {}), **settings}
    given = {key: os.fspath(v) if isinstance(v, os.PathLike) else v for key, v in given.items()}
    if dataset is not None:
        given.setdefault("data", str(getattr(dataset, "name", type(dataset).__name__)))
    chosen = TrainConfig.make(given, source)
    return run(chosen, resume=resume, progress=progress, dataset=dataset)


def run(
    config: TrainConfig,
    *,
    resume: str | None = None,
    progress: bool | None = None,
    dataset: Any = None,
    change: Change | None = None,
    stop_at: int | None = None,
) -> RunResult:
    """Train, then evaluate the best checkpoint on the test set.

    Args:
        config: the settings.
        resume: see :meth:`Trainer.fit`.
        progress: whether to show a progress bar; None shows one on a terminal, and lines elsewhere.
        dataset: the data set, if it is already loaded.
        change: function of the new network and the tasks that returns those to train.
        stop_at: stop after this step; schedules are still those of the whole run.

    >>> import tempfile
    >>> from mtlkit.training.config import TrainConfig
    >>> from mtlkit.training.experiment import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"data": "multidigits(train=64, val=16, test=16)", "epochs": 1}
    ...     result = run(TrainConfig.make({**settings, "output": folder}), progress=False)
    >>> result.fit.step, result.test["left"]["accuracy"] <= 1
    (1, True)
    """
    from mtlkit.training.record import describe_run, write_record

    check_resume(resume)
    if dataset is None:
        dataset = load_data(config)
    trainer, loaders = build_trainer(config, progress=progress, dataset=dataset, change=change)
    _check_folder(config, resume)
    record = describe_run(trainer.model, trainer.tasks, dataset, config.plugins)
    if trainer.accelerator.is_main_process:
        write_text(config.folder / "config.yaml", config.to_yaml())
        write_record(config.folder, record, dataset)
    length = plan_length(config, dataset, len(loaders["train"]))  # type: ignore[arg-type]
    steps = min((n for n in (length.steps, stop_at) if n is not None), default=None)
    test = None
    try:
        fit = trainer.fit(
            loaders["train"], loaders["val"], epochs=length.epochs, steps=steps, resume=resume
        )
        if trainer.accelerator.is_main_process:
            names = ("best_step", "stopped_early", "still_improving")
            facts = {"steps": fit.step, **{name: getattr(fit, name) for name in names}}
            write_record(config.folder, record, trained=facts)
        trainer.load_best()
        if config.test and loaders["test"] is not None:
            if config.test_last is None:
                test = trainer.evaluate(loaders["test"])
            else:
                test = trainer.evaluate_last(loaders["test"], config.test_last)
            if trainer.accelerator.is_main_process:
                write_text(config.folder / "test.json", json.dumps(test, indent=2))
    finally:
        metrics = {f"test/{t}/{m}": v for t, row in (test or {}).items() for m, v in row.items()}
        end_trackers(trainer.accelerator, config.model_dump(), metrics, trainer.step)
    return RunResult(fit, test, config.folder, trainer.model.eval())


def describe_plan(config: TrainConfig) -> str:
    """Build everything and describe the run; nothing is trained or written."""
    dataset = load_data(config)
    trainer, loaders = build_trainer(config, dataset=dataset, progress=False)
    length = plan_length(config, dataset, len(loaders["train"]))  # type: ignore[arg-type]
    sizes = {split: len(getattr(dataset, split, None) or ()) for split in ("train", "val", "test")}
    ends = f"; ends after {length.patience} validations without progress" if length.patience else ""
    every = f"every {length.eval_steps} steps" if length.eval_steps else "after every epoch"
    lines = {
        "data": f"{shorten(config.data)}: " + ", ".join(f"{n:,} {split}" for split, n in sizes.items()),
        "tasks": ", ".join(f"{task.name} ({task.kind})" for task in trainer.tasks),
        "network": config.architecture or getattr(dataset, "default_architecture", ""),
        "method": str(trainer.method),
        "optimizer": f"{config.optimizer}; {describe_groups(trainer.optimizer.param_groups)}",
        "length": f"{length.last_step:,} steps, {length.epoch_steps:,} per epoch{ends}",
        "validation": every if loaders["val"] is not None else "none: no samples for it",
        "device": f"{trainer.accelerator.device}, precision {trainer.accelerator.mixed_precision}, "
        f"{trainer.accelerator.num_processes} process(es)",
        "folder": str(config.folder),
    }
    return "\n".join(f"{name:<11} {text}" for name, text in lines.items())


def _check_folder(config: TrainConfig, resume: str | None) -> None:
    """Raise if the folder contains another run, or the run to resume had other settings."""
    checkpoints = Checkpoints(config.folder / "checkpoints")
    if resume is None:
        refuse_old_run(checkpoints)
        return
    origins = [config.folder] if checkpoints.paths() else []
    if resume != "auto":
        load_checkpoint(resume)  # before the settings of an old run are overwritten
        origins.insert(0, Path(resume).absolute().parent.parent)
    for origin in origins:
        path = origin / "config.yaml"
        if not path.is_file():
            continue
        before, now = read_yaml(path), parse_yaml(config.to_yaml(), "these settings")
        changes = describe_changes(before, now, (k for k in now if k in before and k not in RESUMABLE))
        if changes:
            raise ConfigError(
                f"the run in {origin} had other settings: {changes}. Resume with the same ones (only "
                "its length, its log and its devices may change), or start a new run in another folder"
            )


def build_trainer(
    config: TrainConfig,
    *,
    progress: bool | None = None,
    dataset: Any = None,
    change: Change | None = None,
) -> tuple[Trainer, dict[str, DataLoader[Any] | None]]:
    """Return the Trainer of these settings, and the loaders of train, val and test."""
    choose_device(config.device)
    if dataset is None:
        dataset = load_data(config)
    whole = dataset
    model, tasks, dataset = build_model(config, dataset=dataset, change=change)
    names = [task.name for task in tasks]
    if hasattr(dataset, "only"):
        dataset = dataset.only(names)
    optimizer = make_optimizer(config, model)
    splits = ("train", "val", *(("test",) if config.test else ()))
    loaders = {"test": None, **{name: _loader(dataset, name, config) for name in splits}}
    if loaders["train"] is None:
        raise ConfigError(f"data set {config.data!r} has no training samples")
    length = plan_length(config, whole, len(loaders["train"]))
    scheduler = _schedule(config, optimizer, length, lenient=change is not None)
    if isinstance(scheduler, ReduceLROnPlateau) and loaders["val"] is None:
        raise ConfigError(
            f"schedule {config.schedule!r} needs validation samples; the data set has none"
        )
    trainer = Trainer(
        model,
        tasks,
        optimizer,
        scheduler=scheduler,
        output=config.folder,
        eval_steps=length.eval_steps,
        early_stopping_patience=length.patience,
        save_total_limit=max(config.save_total_limit, _kept(config, length)),
        single_task_metrics={
            name: row for name, row in (config.single_task_metrics or {}).items() if name in names
        },
        progress=progress,
        **{name: getattr(config, name) for name in _PASSED_ON},
    )
    # dropout must differ between processes; the initial weights must not
    seed_rng(config.seed + 1 + trainer.accelerator.process_index)
    return trainer, loaders


def load_data(config: TrainConfig) -> Any:
    """Load the data set of these settings."""
    from mtlkit.data import load_dataset

    return load_dataset(config.data, data_dir=config.data_dir, seed=config.seed)


def build_model(
    config: TrainConfig, *, dataset: Any = None, change: Change | None = None
) -> tuple[torch.nn.Module, Sequence[Task], Any]:
    """Return the network, its tasks and the data set; the weights only depend on the seed."""
    if dataset is None:
        dataset = load_data(config)
    tasks: Sequence[Task] = [Task.of(task) for task in dataset.tasks]
    architecture = config.architecture or getattr(dataset, "default_architecture", None)
    if config.architecture and hasattr(dataset, "complete_architecture"):
        architecture = dataset.complete_architecture(config.architecture)
    if not architecture:
        raise ConfigError(f"data set {config.data!r} has no default network; set 'architecture'")
    seed_rng(config.seed)
    method: Any = methods.with_seed(config.method, config.seed)
    extra = {} if config.preference is None else {"preference": config.preference}
    model: torch.nn.Module = create_architecture(architecture, tasks, method=method, **extra)
    if change is not None:
        model, tasks = change(model, tasks)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    if config.compile:
        model.compile()  # in place: parameters and checkpoints keep their names
    return model, tasks, dataset


def make_optimizer(config: TrainConfig, model: torch.nn.Module) -> Optimizer:
    """Return the optimizer of these settings, with a separate group for the method's parameters."""
    groups = param_groups(
        model, lr=config.lr, method_lr=config.method_lr, weight_decay=config.weight_decay
    )
    return build_optimizer(config.optimizer, groups, config.method_optimizer)


def _schedule(
    config: TrainConfig, optimizer: Optimizer, length: Length, *, lenient: bool
) -> LRScheduler | None:
    decay = 1.0
    if config.rotation_decay is not None:
        if any(group.get("name") == METHOD_GROUP for group in optimizer.param_groups):
            auto = config.rotation_decay == "auto"
            decay = paper_decay(length.last_step) if auto else float(config.rotation_decay)
        elif not lenient:
            raise SpecError(f"rotation_decay is set, but the method {config.method!r} has no parameters")
    return make_schedule(config.schedule, optimizer, length.last_step, length.epoch_steps, decay)


def _kept(config: TrainConfig, length: Length) -> int:
    """Return how many recent checkpoints include those of the last epochs that are tested."""
    if config.test_last is None:
        return 1
    if length.last_step < length.epoch_steps:
        raise ConfigError(
            f"test_last needs a whole epoch: the run ends after step {length.last_step}, but an epoch "
            f"has {length.epoch_steps} steps"
        )
    steps = config.test_last * length.epoch_steps
    within = sum(math.ceil(steps / every) for every in (length.eval_steps, config.save_steps) if every)
    return config.test_last + within + 1  # the last epoch may be interrupted


def _loader(dataset: Any, split: str, config: TrainConfig) -> DataLoader[Any] | None:
    samples = getattr(dataset, split, None)
    if samples is None or len(samples) == 0:
        return None
    # BatchNorm cannot handle a last batch of one sample
    drop_last = split == "train" and len(samples) >= config.batch_size
    if hasattr(dataset, "loader"):
        options = {"drop_last": drop_last, "num_workers": config.workers, "seed": config.seed}
        loader: DataLoader[Any] = dataset.loader(split, config.batch_size, **options)
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
