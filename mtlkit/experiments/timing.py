"""Single steps before the trainings: check that one works, and measure its time with each method.

All methods take turns on the same batches in one process, in alternating order, so that other load on
the machine slows them equally. The ratio of a method is the median over rounds of its time divided by
the reference's; a ratio with a wide confidence interval is dropped.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device

from mtlkit.config.files import read_json, write_json
from mtlkit.errors import ConfigError, MtlkitError
from mtlkit.experiments.jobs import Job, failure_reason, load_data, network_change, use_threads
from mtlkit.tasks import Task
from mtlkit.training.accelerators import check_trackers
from mtlkit.training.experiment import build_model, make_optimizer
from mtlkit.training.loaders import Batch

TIMING = "timing.json"
_WARM_UP = 3
_MOST_BATCHES = 200
_WIDEST = 0.2
"""Largest half-width of a ratio's 95 % interval, as a fraction of the ratio."""


def check_first_step(jobs: Sequence[Job], *, elsewhere: bool = False) -> None:
    """Take one step of the plain sum with the data, network and device of the first of these jobs.

    Errors of a single method are not checked: they only fail the runs of that method.

    Args:
        jobs: jobs to run; may be empty.
        elsewhere: whether they run on other machines, with other devices.

    Raises:
        ConfigError: if network, data and device do not work together.
    """
    if not jobs:
        return
    train = {**jobs[0].train, "method": "sum"}
    job = replace(jobs[0], train=train, task=None, extra_capacity=None)
    config = job.config()
    check_trackers(config.log_with)
    dataset = load_data(config)
    batches: dict[int, list[Batch]] = {}
    devices = range(torch.cuda.device_count())  # whose generators are restored
    with torch.random.fork_rng(devices):
        try:
            _stepper(job, _find_device("cpu" if elsewhere else job.device), batches, 1)(0)
        except MtlkitError:
            raise
        except (Exception, SystemExit) as error:
            network = config.architecture or getattr(dataset, "default_architecture", "")
            shapes = [_shapes(batch.inputs) for batch in batches.get(config.batch_size, [])]
            seen = f"a batch has the inputs {shapes[0]}" if shapes else "no batch was read"
            raise ConfigError(
                f"nothing was started, because the first step fails: {failure_reason(error)} "
                f"(data {config.data}, network {network}, device {job.device}; {seen})"
            ) from error


def _shapes(inputs: Any) -> str:
    if isinstance(inputs, torch.Tensor):
        return str(tuple(inputs.shape))
    items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return ", ".join(f"{name}: {_shapes(value)}" for name, value in items)


def known_or_timed(
    path: Path,
    jobs: Mapping[str, Job],
    reference: str | None,
    rounds: int,
    report: Callable[[str], None],
) -> dict[str, float]:
    """Return the ratios by label from the file ``path``, and measure those that are missing.

    The ratio of the reference is 1; without a reference or rounds, nothing is measured.
    """
    if reference is None:
        return {}
    known = _known_ratios(path, reference)
    missing = [label for label in jobs if label not in known]
    if rounds and missing:
        chosen = {label: jobs[label] for label in dict.fromkeys([reference, *missing])}
        found: dict[str, float] = {}
        # the runs report errors
        with contextlib.suppress(MtlkitError), use_threads(chosen[reference].threads):
            found = time_steps(chosen, reference, rounds, report)
        known = {**dict.fromkeys(missing), **found, **known}  # None: not reliable
        write_json(path, {"rounds": rounds, "reference": reference, "ratios": known})
    return {label: ratio for label, ratio in known.items() if ratio is not None}


def _known_ratios(path: Path, reference: str) -> dict[str, float | None]:
    """Read the step times relative to this reference; empty if it was not measured."""
    timing = read_json(path)
    if timing is None:
        return {}
    ratios: dict[str, float | None] = timing["ratios"]
    if timing.get("reference", reference) != reference:
        unit = ratios.get(reference)
        ratios = {} if unit is None else {k: r and r / unit for k, r in ratios.items()}
        write_json(path, {**timing, "reference": reference, "ratios": ratios})
    return ratios


def time_steps(
    jobs: Mapping[str, Job], reference: str, rounds: int, report: Callable[[str], None] | None = None
) -> dict[str, float]:
    """Return the step time of each method divided by the reference's.

    Methods whose step fails, or whose ratio is not reliable, are left out.
    """
    times = measure_steps(jobs, rounds, report)
    if reference not in times:
        return {}
    found = {reference: 1.0}
    for label, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, times[reference], strict=True))
        middle = statistics.median(ratios)
        if label == reference or _half_width(ratios) <= _WIDEST * middle:
            found[label] = middle
    return found


def _half_width(ordered: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of the median, from order statistics.

    With few rounds, it is half of the whole range.
    """
    number = len(ordered)
    skip = max(0, int(number / 2 - 0.98 * number**0.5))
    return (ordered[number - 1 - skip] - ordered[skip]) / 2


def measure_steps(
    jobs: Mapping[str, Job], rounds: int, report: Callable[[str], None] | None = None
) -> dict[str, list[float]]:
    """Return the seconds of ``rounds`` steps of each method; a method whose step fails is left out."""
    device = _find_device(next(iter(jobs.values())).device)
    batches: dict[int, list[Batch]] = {}
    steppers: dict[str, Callable[[int], None]] = {}
    for label, job in jobs.items():
        with contextlib.suppress(Exception, SystemExit):  # its run reports the error
            steppers[label] = _stepper(job, device, batches, 4)
    times: dict[str, list[float]] = {label: [] for label in steppers}
    for number in range(_WARM_UP + rounds):
        order = list(steppers)
        for label in order if number % 2 else reversed(order):
            _wait(device)
            begun = time.perf_counter()
            try:
                steppers[label](number)
            except (Exception, SystemExit):
                del steppers[label], times[label]
                continue
            _wait(device)
            times[label].append(time.perf_counter() - begun)
        if report is not None:
            report(f"timing {len(jobs)} methods: round {number + 1} of {_WARM_UP + rounds}")
    return {label: own[_WARM_UP:] for label, own in times.items()}


def _stepper(
    job: Job, device: torch.device, batches: dict[int, list[Batch]], most: int
) -> Callable[[int], None]:
    """Return a function that takes a training step of a job on one of its first batches.

    ``batches`` stores them by size, so that all methods get the same.
    """
    config = job.config()
    dataset = load_data(config)
    model, tasks, _ = build_model(config, dataset=dataset, change=network_change(job))
    model.to(device).train()
    optimizer = make_optimizer(config, model)
    if config.batch_size not in batches:
        loader = dataset.loader("train", config.batch_size, seed=config.seed)
        batches[config.batch_size] = _first_batches(loader, most, tasks, device)
    own = batches[config.batch_size]
    if not own:
        raise ConfigError(f"no training sample of {config.data} has a label")
    method: Any = model.method
    auxiliary: Any = getattr(model, "auxiliary_loss", None)

    def step(number: int) -> None:
        inputs, targets, labels, _ = own[number % len(own)]
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


def _first_batches(loader: Any, most: int, tasks: Sequence[Task], device: torch.device) -> list[Batch]:
    """Return the first batches that have labels, on the device."""
    found: list[Batch] = []
    for place, (inputs, targets) in enumerate(loader):
        own = {task.name: targets.get(task.name) for task in tasks}
        counts = {task.name: task.count_labels(own[task.name]) for task in tasks}
        if any(count.number > 0 for count in counts.values()):
            found.append(send_to_device(Batch(inputs, own, counts), device))
        if len(found) == most or place == _MOST_BATCHES:
            break
    return found


def _find_device(wanted: str) -> torch.device:
    """Return the device of this name; ``auto`` is the accelerator, if there is one."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    return torch.device(wanted)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
