"""How long a step takes with each method, as a multiple of the reference's.

All methods take turns on the same batch in one process, so that other load on the machine slows all of
them alike. A method's figure is the median over rounds of its time divided by the
reference's in the same round.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from mtlkit.experiments.jobs import Job, load_data, network_change
from mtlkit.tasks import Task
from mtlkit.training.experiment import build_model, make_optimizer
from mtlkit.training.loaders import Batch

_WARM_UP = 3


def time_steps(
    jobs: Mapping[str, Job],
    reference: str,
    rounds: int,
    report: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Step time of each method divided by the reference's.

    Args:
        jobs: one job per label.
        reference: label that has the ratio 1.
        rounds: timed steps per method.
        report: called with the rounds done and all rounds.

    Returns:
        Ratios by label; a method whose step raises is left out.
    """
    steppers: dict[str, Callable[[Batch], None]] = {}
    batches: list[Batch] = []
    device = find_device(next(iter(jobs.values())).device)
    for label, job in jobs.items():
        config = job.config()
        dataset = load_data(config)
        try:
            model, tasks, _ = build_model(config, dataset=dataset, change=network_change(job))
            model.to(device).train()
            steppers[label] = make_stepper(model, tasks, make_optimizer(config, model))
        except (Exception, SystemExit):  # the error will show up in its own run
            continue
        if not batches:
            loader = dataset.loader("train", config.batch_size, seed=config.seed)
            batches = first_batches(loader, 4, tasks, device)
    if reference not in steppers:
        return {}
    times: dict[str, list[float]] = {label: [] for label in steppers}
    for number in range(_WARM_UP + rounds):
        batch = batches[number % len(batches)]
        for label in list(steppers):
            _wait(device)
            begun = time.perf_counter()
            try:
                steppers[label](batch)
            except (Exception, SystemExit):
                if label == reference:
                    return {}
                del steppers[label]
                continue
            _wait(device)
            times[label].append(time.perf_counter() - begun)
        if report is not None:
            report(number + 1, _WARM_UP + rounds)
    base = times[reference][_WARM_UP:]
    return {
        label: statistics.median(a / b for a, b in zip(times[label][_WARM_UP:], base, strict=True))
        for label in steppers
    }


def make_stepper(model: nn.Module, tasks: Sequence[Task], optimizer: Any) -> Callable[[Batch], None]:
    """A function that takes one training step on a batch."""
    method: Any = model.method
    auxiliary: Any = getattr(model, "auxiliary_loss", None)

    def step(batch: Batch) -> None:
        inputs, targets, labels = batch
        predictions = model(inputs)
        losses = {
            t.name: t.measure(predictions[t.name], targets[t.name], labels[t.name])[0] for t in tasks
        }
        total = method.total(losses)
        term = None if auxiliary is None else auxiliary()
        (total if term is None else total + term).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def first_batches(loader: Any, number: int, tasks: Sequence[Task], device: torch.device) -> list[Batch]:
    """The first batches, on the device, with their labels counted as the Trainer does."""
    found = []
    for inputs, targets in itertools.islice(loader, number):
        own = {task.name: targets.get(task.name) for task in tasks}
        labels = {task.name: task.count_labels(own[task.name]) for task in tasks}
        found.append(send_to_device(Batch(inputs, own, labels), device))
    return found


def find_device(wanted: str) -> torch.device:
    """The device of this name; ``auto`` is the accelerator where there is one."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    return torch.device(wanted)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
