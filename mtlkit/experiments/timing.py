"""Single steps before the trainings: check that one works, and measure its time with each method.

All methods take turns on the same batches in one process, in alternating order, so that other load on
the machine slows them equally. A turn is one step, or as many as it takes until the cost repeats, but at
most 16. The ratio of a method is the median over rounds of its time per step divided by the reference's;
a ratio with a wide confidence interval is dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import patch_environment

from mtlkit.config.files import read_json, write_json
from mtlkit.errors import ConfigError, MtlkitError
from mtlkit.experiments.jobs import Job, failure_reason, load_data, network_change, use_threads
from mtlkit.training.experiment import build_trainer
from mtlkit.training.loaders import Batch, prepare_loader

TIMING = "timing.json"
_WARM_UP = 3
_MOST_BATCHES = 200
_LONGEST_TURN = 16
"""Largest number of steps of a turn; what happens less often adds at most a few percent."""
_WIDEST = 0.2
"""Largest half-width of a ratio's 95% interval, as a fraction of the ratio."""


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
    dataset = load_data(config)
    batches: list[Batch] = []
    # the jobs elsewhere inherit the environment, and must not inherit the device of this check
    on_cpu = patch_environment(ACCELERATE_USE_CPU="true") if elsewhere else contextlib.nullcontext()
    devices = range(torch.cuda.device_count())  # whose generators are restored
    with torch.random.fork_rng(devices), on_cpu:
        try:
            step, _ = _stepper(replace(job, device="cpu") if elsewhere else job, batches, 1)
            step(0)
        except MtlkitError:
            raise
        except (Exception, SystemExit) as error:
            network = config.architecture or getattr(dataset, "default_architecture", "")
            shapes = _shapes(batches[0].inputs) if batches else ""
            seen = f"a batch has the inputs {shapes}" if shapes else "no batch was read"
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
    steppers: dict[str, tuple[Callable[[int], None], int]] = {}
    with use_threads(next(iter(jobs.values())).threads):
        for label, job in jobs.items():
            with contextlib.suppress(Exception, SystemExit):  # its run reports the error
                steppers[label] = _stepper(job, [], 4)
        times: dict[str, list[float]] = {label: [] for label in steppers}
        for number in range(_WARM_UP + rounds):
            order = list(steppers)
            for label in order if number % 2 else reversed(order):
                step, period = steppers[label]
                begun = time.perf_counter()
                try:
                    for turn in range(period):
                        step(number * period + turn)
                except (Exception, SystemExit):
                    del steppers[label], times[label]
                    continue
                times[label].append((time.perf_counter() - begun) / period)
            if report is not None:
                report(f"timing {len(jobs)} methods: round {number + 1} of {_WARM_UP + rounds}")
    return {label: own[_WARM_UP:] for label, own in times.items()}


def _stepper(job: Job, batches: list[Batch], most: int) -> tuple[Callable[[int], None], int]:
    """Return a function that takes a training step of a job on one of its first batches with labels.

    With it comes the number of steps of a turn, after which their cost repeats. The batches are added
    to ``batches``. Each is a whole step, also if the run accumulates several.
    """
    config = job.config().model_copy(update={"gradient_accumulation_steps": 1, "workers": 0})
    trainer, loaders = build_trainer(
        config, progress=False, dataset=load_data(config), change=network_change(job)
    )
    take, own_samples = trainer._step.take, trainer._step.own_samples  # noqa: SLF001
    run = (trainer.tasks, trainer.accelerator, config.seed)
    with closing(prepare_loader(loaders["train"], *run, own_samples=own_samples).start(0)) as epoch:
        for batch in itertools.islice(epoch, _MOST_BATCHES):
            if any(count.number for count in batch.labels.values()):
                batches.append(batch)
            if len(batches) == most:
                break
    if not batches:
        raise ConfigError(f"no training sample of {config.data} has a label")

    def step(number: int) -> None:
        take(batches[number % len(batches)], number + 1, number)
        if trainer.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()

    period = 1 if trainer.method is None else trainer.method.cost_period
    return step, min(period, _LONGEST_TURN)
