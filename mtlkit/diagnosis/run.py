"""A short run of the plain sum on a copy of the model, which measures the gradients of its steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mtlkit.diagnosis.groups import Array
from mtlkit.diagnosis.probe import Probe, find_method
from mtlkit.diagnosis.result import Diagnosis
from mtlkit.diagnosis.summary import Measurement, Wrt
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.method import Method
from mtlkit.tasks import Task, task_names
from mtlkit.tasks.overlap import shared_samples
from mtlkit.training.accelerators import make_accelerator
from mtlkit.training.checks import check_at_least, check_choice, check_tasks
from mtlkit.training.loaders import Batch, Batches, prepare_loader
from mtlkit.training.optimizers import build_optimizer, param_groups
from mtlkit.training.run_log import Progress
from mtlkit.training.step import LossModule


def diagnose(
    model: nn.Module,
    tasks: Sequence[Task],
    loader: Any,
    steps: int = 200,
    *,
    wrt: Wrt | None = None,
    optimizer: str | Callable[[list[nn.Parameter]], Optimizer] = "adam",
    lr: float = 1e-3,
    seed: int = 0,
    progress: bool | None = None,
) -> Diagnosis:
    """Train a copy with the plain sum of the losses, and report how the tasks' gradients interact.

    ``model``, its method and torch's random state do not change. The copy uses the plain sum, without
    rotations or loss weights, for any method of the model. All numbers come from gradients that a step
    computes anyway, so a step costs about as much as in training.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.regression("a"), mtlkit.Task.regression("b")]
    >>> model = mtlkit.create_architecture("hard_sharing(backbone=mlp(8, 4, inputs=3))", tasks)
    >>> x = torch.randn(32, 3)
    >>> batches = [(x, {"a": x[:, :1], "b": x[:, 1:2]})]
    >>> found = mtlkit.diagnose(model, tasks, batches, steps=5, progress=False)
    >>> found.summary.cosine.shape
    (2, 2)

    Args:
        model: as for :class:`mtlkit.Trainer`; it needs neither a method nor shared features.
        tasks: the tasks to learn.
        loader: yields batches of ``(inputs, {task: target})``.
        steps: number of optimizer steps.
        wrt: measure the gradients of the shared ``"features"``, or of the shared ``"parameters"``, which
            costs one backward pass per task and also shows the conflicts of each layer. None uses the
            features if the model passes them to a method and some samples are labeled for several tasks.
        optimizer: a string such as ``"sgd(momentum=0.9)"``, or a function of the parameters.
        lr: learning rate, for an optimizer that is a string.
        seed: seed of the order of the batches, and of dropout.
        progress: show a progress bar; None shows it in a terminal.

    Returns:
        The findings and arrays; print it, or write a page with ``to_html(path)``.
    """
    check_at_least(1, steps=steps)
    if wrt is not None:
        check_choice("wrt", wrt, ("features", "parameters"))
    checked = _in_order(check_tasks(tasks), find_method(model))
    accelerator = make_accelerator("no", 1, (), None)
    if accelerator.num_processes > 1:
        raise UsageError(
            f"diagnose runs in one process, but {accelerator.num_processes} were started; run it "
            "without a launcher"
        )
    try:  # losses may have parameters
        model, checked = copy.deepcopy((model, checked))
    except Exception as error:
        raise UsageError(
            f"diagnose trains a copy of the model, but {type(model).__name__} cannot be copied: {error}"
        ) from error
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        batches = prepare_loader(loader, checked, accelerator, seed)
        model.to(accelerator.device)
        probe = _choose_probe(model, checked, _first_batch(batches), wrt)
        made = _make_optimizer(optimizer, model, lr)
        run = _Run(LossModule(model, checked, accelerator), probe, made)
        measured = run.take(batches, steps, Progress(Progress.wanted(progress), steps))
    name = optimizer if isinstance(optimizer, str) else type(made).__name__
    setup = (type(model).__name__, f"{name}, lr {made.param_groups[0]['lr']:g}", f"seed {seed}")
    return Diagnosis.of(measured, setup)


def _in_order(tasks: Sequence[Task], method: Method | None) -> tuple[Task, ...]:
    """Return the tasks in the order of the model's method."""
    by_name = {task.name: task for task in tasks}
    if method is None:
        return tuple(tasks)
    if set(by_name) != set(method.tasks):
        raise SpecError(
            f"the method has the tasks {', '.join(method.tasks)}; given: {', '.join(by_name)}"
        )
    return tuple(by_name[name] for name in method.tasks)


def _first_batch(batches: Batches) -> Batch:
    with closing(batches.start(0)) as epoch:
        for batch in epoch:
            return batch
    raise UsageError("the loader yields no batch; is the data set empty?")


def _choose_probe(model: nn.Module, tasks: Sequence[Task], first: Batch, wrt: Wrt | None) -> Probe:
    """Measure at the features if the model forks them and tasks share samples; or at the parameters."""
    probe = Probe(task_names(tasks), wrt or "features", model)
    model.eval()
    with torch.no_grad():
        model(first.inputs)
    if wrt == "features" and not probe.forked:
        raise SpecError(
            f"{type(model).__name__} does not call method(features), so there are no features to "
            "measure at; pass wrt='parameters', or leave wrt out"
        )
    shared = shared_samples(tasks, first.targets, first.labels, first.inputs)
    labeled = shared.diagonal() > 0
    if wrt is None and not (probe.forked and shared[labeled][:, labeled].all()):
        forked = probe.forked
        probe = Probe(probe.tasks, "parameters", model)
        probe.forked = forked
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
        self.module, self.probe, self.optimizer = module, probe, optimizer
        self.count = len(probe.tasks)
        self.series: dict[str, list[Tensor]] = {}
        self.layers: dict[str, tuple[Any, Any]] = {}
        self.shared_samples = np.zeros((self.count, self.count), dtype=np.int64)
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
                    losses = self.series["losses"][-1].tolist()
                    progress.show(
                        step, epoch, dict(zip(self.probe.tasks, losses, strict=True)), None, {}
                    )
                if step == steps:
                    break
        dead, features = self.probe.constant_features()
        series = {name: _to_numpy(torch.stack(values)) for name, values in self.series.items()}
        return Measurement(
            tasks=self.probe.tasks,
            wrt="parameters" if self.probe.wrt_parameters else "features",
            shared_samples=self.shared_samples,
            most_together=self.most_together,
            forked=self.probe.forked,
            features=features,
            dead_features=dead,
            not_finite=self.not_finite,
            seconds=time.monotonic() - begun,
            layers={name: _to_numpy(total / count) for name, (total, count) in self.layers.items()},
            **series,
        )

    def _step(self, batch: Batch) -> None:
        shared = shared_samples(self.module.tasks, batch.targets, batch.labels, batch.inputs)
        self.shared_samples += shared
        self.most_together = max(self.most_together, int((shared.diagonal() > 0).sum()))
        unknown = torch.full((self.count,), torch.nan, device=next(self.module.parameters()).device)
        table = unknown.expand(self.count, self.count)
        found = {"losses": unknown, "norms": unknown, "cosines": table, "similarity": table.cpu()}
        if any(labels.number for labels in batch.labels.values()):
            self.probe.start_step()
            self.optimizer.zero_grad()
            total, reported = self.module(*batch)
            total.backward()
            losses = [unknown[0] if loss is None else loss.float() for loss in reported]
            found["losses"] = torch.stack(losses)
            stats = self.probe.stats
            if not torch.isfinite(total) or (stats is not None and torch.isinf(stats.norms).any()):
                self.not_finite += 1
            else:
                self.optimizer.step()
                if stats is not None:
                    found |= {"norms": stats.norms, "cosines": stats.cosines}
                    found["similarity"] = self.probe.similarity()
                    for name, group in stats.groups.items():  # sums only: there may be many layers
                        known = torch.isfinite(group.cosines)
                        total, count = self.layers.get(name, (0.0, 0.0))
                        self.layers[name] = (total + group.cosines.where(known, 0.0), count + known)
        for name, value in found.items():
            self.series.setdefault(name, []).append(value)


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
            raise UsageError("the loader can be read only once, and has fewer batches than steps")
        epoch += 1


def _to_numpy(values: Tensor) -> Array:
    return values.cpu().double().numpy()
