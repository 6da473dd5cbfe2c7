"""One step before a comparison starts, to check that network, data and device fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mtlkit.config.plugins import users_line
from mtlkit.errors import ConfigError, MtlkitError
from mtlkit.experiments.jobs import Job, load_data
from mtlkit.experiments.timing import find_device, first_batches, make_stepper
from mtlkit.training.accelerators import check_trackers
from mtlkit.training.experiment import build_model, make_optimizer


def check_first_step(jobs: Sequence[Job], *, elsewhere: bool = False) -> None:
    """Take one step of the plain sum on one batch, as the first of these jobs would.

    Errors of single methods are not looked for: they cost that method's runs and no others.

    Args:
        jobs: that wait; none is nothing to check.
        elsewhere: whether they run on other machines, whose devices are not here.

    Raises:
        ConfigError: where network, data and device do not fit together.
    """
    if not jobs:
        return
    train = {**jobs[0].train, "method": "sum"}
    job = replace(jobs[0], train=train, task=None, extra_capacity=None)
    config = job.config()
    check_trackers(config.log_with)
    dataset = load_data(config)
    seen = "no batch was read"
    devices = range(torch.cuda.device_count())  # the random numbers of each are kept
    with torch.random.fork_rng(devices):
        try:
            device = find_device("cpu" if elsewhere else job.device)
            model, tasks, _ = build_model(config, dataset=dataset)
            model.to(device).train()
            loader = dataset.loader("train", config.batch_size, seed=config.seed)
            batch = next(iter(first_batches(loader, 1, tasks, device)), None)
            if batch is None:
                raise ConfigError(f"no training sample of {config.data} has a label")
            seen = f"a batch has the inputs {_shapes(batch.inputs)}"
            make_stepper(model, tasks, make_optimizer(config, model))(batch)
        except MtlkitError:
            raise
        except (Exception, SystemExit) as error:
            network = config.architecture or getattr(dataset, "default_architecture", "")
            reason = " ".join(str(error).split())
            place = f", in {line}" if (line := users_line(error)) else ""
            raise ConfigError(
                f"nothing was started, because the first step fails: {type(error).__name__}: {reason}"
                f"{place} (data {config.data}, network {network}, device {job.device}; {seen})"
            ) from error


def _shapes(inputs: Any) -> str:
    if isinstance(inputs, torch.Tensor):
        return str(tuple(inputs.shape))
    items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return ", ".join(f"{name}: {_shapes(value)}" for name, value in items)
