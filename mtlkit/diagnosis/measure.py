"""A short run of the plain sum on a copy of the model, and the gradients of its steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from mtlkit.diagnosis.probe import Probe, find_method, install
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.method import Method
from mtlkit.tasks import Task, task_names
from mtlkit.tasks.overlap import labeled_samples
from mtlkit.training.accelerators import make_accelerator
from mtlkit.training.loaders import Batch, Batches, prepare_loader
from mtlkit.training.optimizers import build_optimizer, param_groups
from mtlkit.training.run_log import Progress
from mtlkit.training.step import LossModule, check_at_least, check_choice, check_tasks

Array = NDArray[np.float64]
Wrt = Literal["features", "parameters"]


@dataclass(frozen=True)
class Measurement:
    """The losses and gradients of S steps over K tasks; NaN for a task that was absent."""

    tasks: tuple[str, ...]
    wrt: Wrt
    """Whether the gradients are those of the features or of the shared parameters."""
    losses: Array
    """(S, K)"""
    norms: Array
    """(S, K) norms of the gradients."""
    cosines: Array
    """(S, K, K) cosines between them."""
    similarity: Array
    """(S, K, K) similarity of the gradients over the samples, up to rotations; NaN without a fork."""
    shared_samples: NDArray[np.int64]
    """(K, K) number of samples with labels of both tasks; on the diagonal, of the task."""
    most_together: int
    """Most tasks that had labels in one batch."""
    forked: bool
    """Whether the model passes its features to a method."""
    features: int
    """Number of shared features; 0 without a fork."""
    dead_features: int
    """How many of them had the same value in all samples of the last quarter of the run."""
    not_finite: int
    """Steps that were skipped because a loss or a gradient was not finite."""
    seconds: float
    setup: tuple[str, ...] = ()
    """Model, optimizer and seed, in a few words."""


def measure(
    model: nn.Module,
    tasks: Sequence[Task],
    loader: Any,
    *,
    steps: int,
    wrt: Wrt | None,
    optimizer: str | Callable[[list[nn.Parameter]], Optimizer],
    lr: float,
    seed: int,
    progress: bool | None,
) -> Measurement:
    """Train a copy of ``model`` by the plain sum of the losses; see :func:`mtlkit.diagnose`."""
    check_at_least(1, {"steps": steps})
    if wrt is not None:
        check_choice("wrt", wrt, ("features", "parameters"))
    checked = _in_order(check_tasks(tasks), find_method(model))
    accelerator = make_accelerator("no", 1, (), None)
    if accelerator.num_processes > 1:
        raise UsageError(
            f"diagnose runs in one process, and {accelerator.num_processes} were started; start it "
            "without a launcher"
        )
    try:  # losses may have parameters of their own
        model, checked = copy.deepcopy((model, checked))
    except Exception as error:
        raise UsageError(
            f"diagnose trains a copy of the model, and {type(model).__name__} cannot be copied: {error}"
        ) from error
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        batches = prepare_loader(loader, checked, accelerator, seed)
        model.to(accelerator.device)
        first = _first_batch(batches)
        probe = _choose_probe(model, checked, first, wrt)
        made = _make_optimizer(optimizer, model, lr)
        run = _Run(LossModule(model, checked, accelerator), probe, made)
        name = optimizer if isinstance(optimizer, str) else type(made).__name__
        run.setup = (type(model).__name__, f"{name}, lr {made.param_groups[0]['lr']:g}", f"seed {seed}")
        return run.take(batches, steps, Progress(Progress.wanted(progress), steps))


def _in_order(tasks: Sequence[Task], method: Method | None) -> tuple[Task, ...]:
    """Return the tasks in the order of the model's method."""
    by_name = {task.name: task for task in tasks}
    if method is None:
        return tuple(tasks)
    if set(by_name) != set(method.tasks):
        raise SpecError(
            f"the model's method has the tasks {', '.join(method.tasks)}; given: {', '.join(by_name)}"
        )
    return tuple(by_name[name] for name in method.tasks)


def _first_batch(batches: Batches) -> Batch:
    with closing(batches.start(0)) as epoch:
        for batch in epoch:
            return batch
    raise UsageError("the loader gave no batch; is the data set empty?")


def _choose_probe(model: nn.Module, tasks: Sequence[Task], first: Batch, wrt: Wrt | None) -> Probe:
    """Measure at the features if there are any and tasks share samples, else at the parameters."""
    names = task_names(tasks)
    probe = Probe(names, wrt or "features")
    install(probe, model)
    model.eval()
    with torch.no_grad():
        model(first.inputs)
    if wrt == "features" and not probe.forked:
        raise SpecError(
            f"{type(model).__name__} does not call method(features), so there are no features to "
            "measure at; pass wrt='parameters', or leave wrt out"
        )
    shared = shared_samples(tasks, first)
    labeled = shared.diagonal() > 0
    meets = shared[labeled][:, labeled].astype(bool)
    if wrt is None and not (probe.forked and meets.all()):
        forked = probe.forked
        probe = Probe(names, "parameters")
        probe.forked = forked
        install(probe, model)
    return probe.to(next((p.device for p in model.parameters()), None))


def _make_optimizer(
    optimizer: str | Callable[[list[nn.Parameter]], Optimizer], model: nn.Module, lr: float
) -> Optimizer:
    if callable(optimizer):
        return optimizer([p for p in model.parameters() if p.requires_grad])
    if isinstance(optimizer, str):
        return build_optimizer(optimizer, param_groups(model, lr=lr))
    raise SpecError(
        f"optimizer must be a string such as 'sgd(momentum=0.9)' or a function of a list of parameters, "
        f"because a copy of the model is trained; got {type(optimizer).__name__}"
    )


class _Run:
    """The steps of one measurement."""

    def __init__(self, module: LossModule, probe: Probe, optimizer: Optimizer) -> None:
        self.module = module
        self.probe = probe
        self.optimizer = optimizer
        count = len(probe.tasks)
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.cosines: list[Tensor] = []
        self.similarity: list[Tensor] = []
        self.setup: tuple[str, ...] = ()
        self.shared_samples = np.zeros((count, count), dtype=np.int64)
        self.most_together = self.not_finite = 0

    def take(self, batches: Batches, steps: int, progress: Progress) -> Measurement:
        begun = time.monotonic()
        self.module.train()
        with progress:
            for step, (epoch, batch) in enumerate(_endless(batches), start=1):
                if step == steps - steps // 4:
                    self.probe.start_watching()
                self._step(batch)
                if progress.due():
                    current = dict(zip(self.probe.tasks, self.losses[-1].tolist(), strict=True))
                    progress.show(step, epoch, current, None, {})
                if step == steps:
                    break
        dead, features = self.probe.constant_features()
        return Measurement(
            tasks=self.probe.tasks,
            wrt="parameters" if self.probe.wrt_parameters else "features",
            losses=_stack(self.losses),
            norms=_stack(self.norms),
            cosines=_stack(self.cosines),
            similarity=_stack(self.similarity),
            shared_samples=self.shared_samples,
            most_together=self.most_together,
            forked=self.probe.forked,
            features=features,
            dead_features=dead,
            not_finite=self.not_finite,
            seconds=time.monotonic() - begun,
            setup=self.setup,
        )

    def _step(self, batch: Batch) -> None:
        shared = shared_samples(self.module.tasks, batch)
        self.shared_samples += shared
        self.most_together = max(self.most_together, int((shared.diagonal() > 0).sum()))
        count = len(self.probe.tasks)
        device = next(self.module.parameters()).device
        losses = norms = torch.full((count,), torch.nan, device=device)
        cosines = torch.full((count, count), torch.nan, device=device)
        similarity = torch.full((count, count), torch.nan)
        if any(labels.number for labels in batch.labels.values()):
            self.probe.start_step()
            self.optimizer.zero_grad()
            total, reported = self.module(*batch)
            total.backward()
            losses = torch.stack([losses[0] if loss is None else loss.float() for loss in reported])
            stats = self.probe.stats
            gradients_finite = stats is None or not torch.isinf(stats.norms).any()
            if torch.isfinite(total) and gradients_finite:
                self.optimizer.step()
                if stats is not None:
                    norms, cosines = stats.norms, stats.cosines
                    similarity = self.probe.similarity()
            else:
                self.not_finite += 1
        self.losses.append(losses)
        self.norms.append(norms)
        self.cosines.append(cosines)
        self.similarity.append(similarity)


def shared_samples(tasks: Sequence[Task], batch: Batch) -> NDArray[np.int64]:
    """Return the (K, K) number of samples of a batch that are labeled for both tasks.

    Where the inputs are a mapping by task, every task has samples of its own.
    """
    own_inputs = isinstance(batch.inputs, Mapping) and set(batch.inputs) <= {t.name for t in tasks}
    targets = [batch.targets.get(task.name) for task in tasks]
    size = max((len(target) for target in targets if target is not None), default=0)
    masks = np.zeros((len(tasks), size), dtype=np.int64)
    for mask, task, target in zip(masks, tasks, targets, strict=True):
        if target is not None:
            mask[: len(target)] = labeled_samples(task, target, batch.labels[task.name]).numpy()
    table: NDArray[np.int64] = masks @ masks.T
    return np.diag(table.diagonal()) if own_inputs else table


def _endless(batches: Batches) -> Iterator[tuple[int, Batch]]:
    """Yield batches epoch after epoch, each with the number of its epoch."""
    epoch = 0
    while True:
        found = False
        with closing(batches.start(epoch)) as current:
            for batch in current:
                found = True
                yield epoch, batch
        if not found:
            raise UsageError("the loader can be read only once and has fewer batches than steps")
        epoch += 1


def _stack(values: list[Tensor]) -> Array:
    return torch.stack(values).double().cpu().numpy()
