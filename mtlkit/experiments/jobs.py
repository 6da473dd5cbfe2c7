"""One training of a comparison, in any process; the result is written to ``result.json``."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from filelock import FileLock
from torch import Tensor, nn

from mtlkit.architectures.base import SingleTask
from mtlkit.architectures.capacity import add_capacity
from mtlkit.config.files import read_json, write_json, write_text
from mtlkit.config.logs import LOG_NAME
from mtlkit.config.plugins import describe_error, users_line
from mtlkit.config.settings import describe_changes
from mtlkit.errors import ConfigError, MtlkitError
from mtlkit.report.histories import read_history, read_lines
from mtlkit.tasks import Task
from mtlkit.training.config import TrainConfig

RESULT = "result.json"
ERROR_LOG = "error.log"
FREE = frozenset(
    {"data_dir", "plugins", "workers", "save_steps", "logging_steps", "monitor_steps", "log_with"}
)
"""Settings that do not affect results and may change when a comparison is resumed."""
_IDENTITY = "job.json"
_START = "start.json"
_SESSION = "session.json"


@dataclass(frozen=True)
class Job:
    """The complete description of one training.

    Attributes:
        folder: folder of the run and its result.
        label: label of the method.
        seed: seed of weights, batches and data split.
        train: settings of a :class:`TrainConfig`, including the method.
        task: the only task of a single-task training.
        extra_capacity: options of :class:`~mtlkit.architectures.capacity.TaskMatrix`, or None.
        threads: threads of torch; a resumed run must use the same number, which fixes the order of sums.
        device: ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:1``.
        keep_weights: whether to keep ``checkpoints/best.pt``.
        kind: ``front`` for a weighting that only spans the front; empty for a method.
        divide_steps: divisor of the planned number of steps.
        stop_at: pause after this step; the outcome is returned but not written, checkpoints stay.
    """

    folder: str
    label: str
    seed: int
    train: dict[str, Any]
    task: str | None = None
    extra_capacity: dict[str, Any] | None = None
    threads: int = 1
    device: str = "auto"
    keep_weights: bool = False
    kind: str = ""
    divide_steps: int = 1
    stop_at: int | None = None

    @property
    def name(self) -> str:
        """The label, task and seed."""
        task = "" if self.task is None else f", {self.task}"
        return f"{self.label}{task}, seed {self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the result."""
        keys = ["label", "seed", "train", "task", "extra_capacity"]
        keys += ["divide_steps"] if self.divide_steps > 1 else []
        keys += ["kind"] if self.kind else []
        identity: dict[str, Any] = json.loads(json.dumps({key: asdict(self)[key] for key in keys}))
        return identity

    def config(self) -> TrainConfig:
        """Return the settings of the training."""
        own = {"seed": self.seed, "output": self.folder, "device": self.device, "save_total_limit": 1}
        return TrainConfig.make({**self.train, **own}, self.name)


@dataclass
class Outcome:
    """The outcome of a training.

    Attributes:
        metrics: metrics by task.
        split: their data: ``test``, or the best ``validation`` if nothing is tested.
        seconds: total time of all processes that worked on it.
        weights: checksum of the initial weights, without the method's own.
        batch: checksum of the first batch; None for a task with its own data, or without a label in
            the first batch.
        data: checksum of inputs and targets; None for a task with its own data.
        steps: optimizer steps.
        best_last: whether the last of several validations was the best: training longer may help.
        error: reason of a failure; empty after success.
    """

    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    split: str = "test"
    seconds: float = 0.0
    weights: int = 0
    batch: int | None = 0
    data: int | None = None
    steps: int = 0
    best_last: bool = False
    error: str = ""


class Session:
    """Measures the time of a run over several processes.

    The time of a killed process counts until the last line of its log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = time.monotonic()
        self.earlier = 0.0
        with contextlib.suppress(ValueError, KeyError, TypeError):
            before = read_json(folder / _SESSION) or {}
            worked = self._last("time") - float(before["begun"])
            self.earlier = float(before["earlier"]) + max(worked, 0.0)
        write_json(folder / _SESSION, {"begun": time.time(), "earlier": self.earlier})

    @property
    def seconds(self) -> float:
        """The seconds of all processes so far."""
        return self.earlier + time.monotonic() - self._begun

    @property
    def steps(self) -> int:
        """The last logged step."""
        return int(self._last("step"))

    def _last(self, key: str) -> float:
        rows = read_lines(self._folder / LOG_NAME)
        return max((row[key] for row in rows if isinstance(row.get(key), int | float)), default=0.0)


def run_job(job: Job) -> Outcome:
    """Train and test, resuming from a checkpoint if there is one; read the result of a finished job.

    An error is written to ``error.log`` in the job's folder and returned, not raised.
    """
    done = read_outcome(job)
    if done is not None:
        return done
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), use_threads(job.threads):
        done = read_outcome(job)  # finished by the process that held the lock
        if done is not None:
            return done
        session = Session(folder)
        try:
            claim(job)
            outcome = _train(job, session)
        except (Exception, SystemExit) as error:  # one failing method must not stop the other runs
            write_text(folder / ERROR_LOG, "".join(traceback.format_exception(error)))
            return Outcome(error=failure_reason(error), seconds=session.seconds, steps=session.steps)
        if job.stop_at is not None and outcome.steps >= job.stop_at:
            return outcome
        write_json(folder / RESULT, asdict(outcome))
        (folder / ERROR_LOG).unlink(missing_ok=True)
        for path in (folder / "checkpoints").glob("step-*.pt"):
            path.unlink(missing_ok=True)
        if not job.keep_weights:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return outcome


def read_outcome(job: Job) -> Outcome | None:
    """Return the result of a finished job, or None."""
    path = Path(job.folder) / RESULT
    if not path.is_file():
        return None
    claim(job)
    try:
        return Outcome(**(read_json(path) or {"damaged": True}))
    except TypeError:
        return None


def claim(job: Job) -> None:
    """Record the job that the folder belongs to.

    Raises:
        ConfigError: if it contains a run with other settings.
    """
    path = Path(job.folder) / _IDENTITY
    known = read_json(path)
    if known is None:
        write_json(path, job.identity)
        return
    old, new = _flat(known), _flat(job.identity)
    keys = (key for key in sorted({*old, *new}) if key.removeprefix("train.") not in FREE)
    changes = describe_changes(old, new, keys)
    if changes:
        raise ConfigError(
            f"{job.folder} contains a run of {job.label!r} with other settings ({changes}); "
            "choose another output folder, or delete this one"
        )


def network_change(job: Job) -> Any:
    """Return a function that turns a fresh network into the job's network."""

    def change(model: nn.Module, tasks: Sequence[Task]) -> tuple[nn.Module, Sequence[Task]]:
        if job.extra_capacity is not None:
            add_capacity(model, job.extra_capacity)
        if job.task is None:
            return model, tasks
        if getattr(model, "preferences", None) is not None:
            model.fold_preference()  # type: ignore[operator]
        alone = SingleTask(model, job.task, named=True)
        return alone, [task for task in tasks if task.name == job.task]

    return change


def _noting_start(job: Job) -> Any:
    """Return a network change that writes checksums of first weights and batch to ``start.json``."""
    path = Path(job.folder) / _START

    def change(model: nn.Module, tasks: Sequence[Task]) -> tuple[nn.Module, Sequence[Task]]:
        weights = weights_checksum(model)
        changed, chosen = network_change(job)(model, tasks)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            handle.remove()
            if not path.exists():  # a resumed run starts with another batch
                # a forward pass per task sees only a part of the batch
                whole = any(len(leaf) == job.config().batch_size for leaf in _leaves(inputs))
                batch = batch_checksum(inputs) if whole else None
                write_json(path, {"weights": weights, "batch": batch})

        handle = changed.register_forward_pre_hook(note)
        return changed, chosen

    return change


def weights_checksum(model: nn.Module) -> int:
    """Return the checksum of all parameters except the method's own, which differ between methods."""
    method = getattr(model, "method", None)
    own = set() if method is None else {id(p) for p in method.parameters()}
    return _checksum((name, p) for name, p in model.named_parameters() if id(p) not in own)


def batch_checksum(batch: Sequence[Any]) -> int:
    """Return the checksum of the inputs of a batch."""
    return _checksum(("", leaf) for leaf in _leaves(batch))


def _leaves(batch: Sequence[Any]) -> list[Tensor]:
    inputs = batch[0]
    return list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]


def _checksum(tensors: Iterable[tuple[str, Tensor]]) -> int:
    value = 0
    for name, tensor in tensors:
        data = tensor.detach().cpu().contiguous().numpy().tobytes()
        value = crc32(data, crc32(name.encode(), value))
    return value


@functools.lru_cache(maxsize=1)
def open_data(data: str, data_dir: str | None, seed: int) -> Any:
    """Load a data set; the last one is cached, because consecutive runs share a seed."""
    from mtlkit.data import load_dataset

    return load_dataset(data, data_dir=data_dir, seed=seed)


def load_data(config: TrainConfig) -> Any:
    """Load the data set of a run, without its messages, which the comparison printed when it started."""
    with contextlib.redirect_stderr(io.StringIO()):
        return open_data(config.data, config.data_dir, config.seed)


def _train(job: Job, session: Session) -> Outcome:
    from mtlkit.training.experiment import run

    config = job.config()
    dataset = load_data(config)
    if job.divide_steps > 1:
        config = _shortened(config, dataset, job.divide_steps)
    result = run(
        config,
        resume="auto",
        progress=False,
        dataset=dataset,
        change=_noting_start(job),
        stop_at=job.stop_at,
    )
    folder = Path(job.folder)
    start = json.loads((folder / _START).read_text(encoding="utf-8"))
    metrics, split = result.test, "test"
    if metrics is None:  # there is no test
        split = "validation"
        rows = [row for row in read_history(job.folder)[0] if row.split == "val"]
        best = [row.metrics for row in rows if row.step == result.fit.best_step]
        metrics = best[-1] if best else result.fit.validation
    # without a label of the task in the first batch, training started with a later one
    skipped = any(row.get("kind") == "unlabeled" for row in read_lines(folder / LOG_NAME))
    own_data = job.task is not None and (skipped or dataset.only([job.task]) is not dataset)
    return Outcome(
        metrics=metrics,
        split=split,
        seconds=session.seconds,
        weights=start["weights"],
        batch=None if own_data else start["batch"],
        # the checksum reads test samples, which a trial of a search must not
        data=getattr(dataset, "checksum", None) if config.test and not own_data else None,
        steps=result.fit.step,
        best_last=result.fit.still_improving,
    )


def planned_steps(config: TrainConfig, dataset: Any) -> tuple[int, int]:
    """Return the number of steps of a training, and the steps between two validations."""
    from mtlkit.training.experiment import plan_length

    batches = max(1, len(dataset.loader("train", config.batch_size, drop_last=True)))
    length = plan_length(config, dataset, batches)
    return length.last_step, length.eval_steps or length.epoch_steps


def _shortened(config: TrainConfig, dataset: Any, divisor: int) -> TrainConfig:
    """Return the settings for a fraction of the steps, with the same number of validations."""
    steps, between = planned_steps(config, dataset)
    every = max(1, between // divisor)
    changes = {"steps": max(1, steps // divisor), "epochs": None, "eval_steps": every}
    return config.model_copy(update=changes)


def failure_reason(error: BaseException) -> str:
    """Return an error on one line; an unexpected one with its type and the line in the user's code."""
    if isinstance(error, MtlkitError):
        return " ".join(str(error).split())
    place = f", in {line}" if (line := users_line(error)) else ""
    return f"{describe_error(error)}{place}"


@contextlib.contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Set torch's number of threads inside a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine a result, with defaults for those of later versions."""
    defaults = {key: field.default for key, field in TrainConfig.model_fields.items()}
    train = defaults | identity.get("train", {})
    return {**identity, **{f"train.{key}": value for key, value in train.items()}, "train": None}
