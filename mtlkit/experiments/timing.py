"""How long a step takes with each method, as a multiple of the reference's.

All methods take turns on the same batches in one process, in another order in every round, so that other
load on the machine slows all of them alike. A ratio is the median over rounds of a method's time divided
by the reference's in the same round; where its interval is wide, there is none.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from mtlkit.errors import MtlkitError
from mtlkit.experiments.jobs import Job, load_data, network_change, write_json
from mtlkit.tasks import Task
from mtlkit.training.experiment import build_model, make_optimizer
from mtlkit.training.loaders import Batch

TIMING = "timing.json"
_WARM_UP = 3
_MOST_BATCHES = 200
_WIDEST = 0.2
"""Largest half-width of a ratio's 95 % interval, as a fraction of the ratio."""


def known_or_timed(
    path: Path,
    jobs: Mapping[str, Job],
    reference: str | None,
    rounds: int,
    report: Callable[[str], None],
) -> dict[str, float]:
    """Return ratios from ``timing.json``, or measure those that are missing.

    Args:
        path: the file.
        jobs: one job per label.
        reference: label that has the ratio 1; without one, nothing is timed.
        rounds: timed steps per method; 0 for none.
        report: called with what is going on.
    """
    if reference is None:
        return {}
    known = _known_ratios(path, reference)
    missing = [label for label in jobs if label not in known]
    if rounds == 0 or not missing:
        return _reliable(known)
    chosen = {label: jobs[label] for label in dict.fromkeys([reference, *missing])}
    threads = torch.get_num_threads()
    torch.set_num_threads(next(iter(chosen.values())).threads)
    try:
        found = time_steps(
            chosen,
            reference,
            rounds,
            lambda done, total: report(f"timing {len(chosen)} methods: round {done} of {total}"),
        )
    except MtlkitError:
        found = {}  # the error will show up in the runs themselves
    finally:
        torch.set_num_threads(threads)
    known = {**dict.fromkeys(missing), **found, **known}  # None: not reliable, and not tried again
    write_json(path, {"rounds": rounds, "reference": reference, "ratios": known})
    return _reliable(known)


def _reliable(ratios: Mapping[str, float | None]) -> dict[str, float]:
    return {label: ratio for label, ratio in ratios.items() if ratio is not None}


def _known_ratios(path: Path, reference: str) -> dict[str, float | None]:
    """Read the step times as multiples of this reference's; none if it was not timed."""
    if not path.is_file():
        return {}
    timing = json.loads(path.read_text(encoding="utf-8"))
    ratios: dict[str, float | None] = timing["ratios"]
    if timing.get("reference", reference) != reference:
        unit = ratios.get(reference)
        ratios = {} if unit is None else {k: r and r / unit for k, r in ratios.items()}
        write_json(path, {**timing, "reference": reference, "ratios": ratios})
    return ratios


def time_steps(
    jobs: Mapping[str, Job],
    reference: str,
    rounds: int,
    report: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Return the step time of each method divided by the reference's.

    Methods whose step raises, or whose ratio is not reliable, are left out.
    """
    times = measure_steps(jobs, rounds, report)
    if reference not in times:
        return {}
    base = times[reference]
    found = {reference: 1.0}
    for label, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, base, strict=True))
        middle = statistics.median(ratios)
        if label == reference or _half_width(ratios) <= _WIDEST * middle:
            found[label] = middle
    return found


def _half_width(ordered: Sequence[float]) -> float:
    """Return half of the 95 % interval of the median, from its order statistics.

    Few rounds have no such interval: then it is half of the whole range.
    """
    number = len(ordered)
    skip = max(0, int(number / 2 - 0.98 * number**0.5))
    return (ordered[number - 1 - skip] - ordered[skip]) / 2


def measure_steps(
    jobs: Mapping[str, Job], rounds: int, report: Callable[[int, int], None] | None = None
) -> dict[str, list[float]]:
    """Return the seconds of ``rounds`` steps of each method; one whose step raises is left out."""
    steppers: dict[str, Callable[[Batch], None]] = {}
    batches: dict[int, list[Batch]] = {}
    sizes: dict[str, int] = {}
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
        sizes[label] = config.batch_size
        if config.batch_size not in batches:
            loader = dataset.loader("train", config.batch_size, seed=config.seed)
            batches[config.batch_size] = first_batches(loader, 4, tasks, device)
    times: dict[str, list[float]] = {label: [] for label in steppers}
    for number in range(_WARM_UP + rounds):
        order = list(steppers)
        for label in order if number % 2 else reversed(order):
            batch = batches[sizes[label]][number % len(batches[sizes[label]])]
            _wait(device)
            begun = time.perf_counter()
            try:
                steppers[label](batch)
            except (Exception, SystemExit):
                del steppers[label], times[label]
                continue
            _wait(device)
            times[label].append(time.perf_counter() - begun)
        if report is not None:
            report(number + 1, _WARM_UP + rounds)
    return {label: own[_WARM_UP:] for label, own in times.items()}


def make_stepper(model: nn.Module, tasks: Sequence[Task], optimizer: Any) -> Callable[[Batch], None]:
    """Return a function that takes one training step on a batch."""
    method: Any = model.method
    auxiliary: Any = getattr(model, "auxiliary_loss", None)

    def step(batch: Batch) -> None:
        inputs, targets, labels, _ = batch
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
    """Return the first batches that have labels, on the device."""
    found: list[Batch] = []
    for place, (inputs, targets) in enumerate(loader):
        batch = read_batch(inputs, targets, tasks)
        if any(count.number > 0 for count in batch.labels.values()):
            found.append(send_to_device(batch, device))
        if len(found) == number or place == _MOST_BATCHES:
            break
    return found


def read_batch(inputs: Any, targets: Any, tasks: Sequence[Task]) -> Batch:
    """Return a batch with its labels counted as the Trainer does."""
    own = {task.name: targets.get(task.name) for task in tasks}
    return Batch(inputs, own, {task.name: task.count_labels(own[task.name]) for task in tasks})


def find_device(wanted: str) -> torch.device:
    """Return the device of this name; ``auto`` is the accelerator if there is one."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    return torch.device(wanted)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
