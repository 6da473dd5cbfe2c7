"""Metrics of a data set, and one score to choose the best checkpoint by."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import send_to_device
from torch import nn

from mtlkit.tasks import Task
from mtlkit.training.checkpoints import read_rng, write_rng
from mtlkit.training.loaders import Batches
from mtlkit.training.step import prediction_of

Metrics = dict[str, dict[str, float]]


@torch.no_grad()
def evaluate(network: nn.Module, tasks: Sequence[Task], batches: Batches, accelerator: Any) -> Metrics:
    """Loss and metrics of every task over all batches; random generators are left unchanged."""
    device = accelerator.device
    # torchmetrics' sums are float64, which Apple's GPUs lack
    where = torch.device("cpu") if device.type == "mps" else device
    metrics = {task.name: task.make_metrics(where) for task in tasks}
    sums = torch.zeros(len(tasks), 2, dtype=torch.float64, device=where)
    rng = read_rng()
    was_training = network.training
    network.eval()
    try:
        for inputs, targets, labels in batches:
            predictions = network(inputs)
            for index, task in enumerate(tasks):
                prediction = prediction_of(predictions, task.name)
                target, known = targets[task.name], labels[task.name]
                loss, count = task.measure(prediction, target, known)
                if loss is None or target is None:
                    continue
                sums[index, 0] += loss.to(sums) * count
                sums[index, 1] += count
                shown = send_to_device((prediction, target, known), where)
                task.update(metrics[task.name], *shown)
    finally:
        network.train(was_training)
        write_rng(rng)
    if accelerator.num_processes > 1:
        dist.all_reduce(sums)
    return {
        task.name: _metrics(task, metrics[task.name], row)
        for task, row in zip(tasks, sums.tolist(), strict=True)
    }


def _metrics(task: Task, metrics: Mapping[str, Any], sums: Sequence[float]) -> dict[str, float]:
    total, count = sums
    with warnings.catch_warnings():
        # "compute before update" on a process that had no label
        warnings.simplefilter("ignore", UserWarning)
        values = task.compute(metrics)
    if count == 0:
        return {"loss": math.nan, **dict.fromkeys(values, math.nan)}
    return {"loss": math.inf if math.isnan(total) else total / count, **values}


def score(metrics: Metrics, tasks: Sequence[Task], by: str, first: dict[str, float]) -> float:
    """One number for a validation, the higher the better.

    Args:
        metrics: of the validation.
        tasks: the tasks.
        by: ``"improvement"``, ``"loss"`` (the sum of the tasks' losses, the lower the better) or
            ``"task/metric"``.
        first: main metrics of the first validation; filled in here.
    """
    if any(math.isinf(metrics[task.name]["loss"]) for task in tasks):
        return -math.inf
    if by == "loss":
        losses = [metrics[task.name]["loss"] for task in tasks]
        total = sum(loss for loss in losses if not math.isnan(loss))
        return -total
    if by != "improvement":
        name, metric = by.rsplit("/", 1)
        better = next(task for task in tasks if task.name == name).higher_is_better.get(metric, False)
        value = metrics[name][metric]
        return (value if better else -value) if math.isfinite(value) else -math.inf
    gains = []
    for task in tasks:
        metric = task.main_metric
        now = metrics[task.name][metric]
        if math.isnan(now):
            continue
        better = task.higher_is_better.get(metric, False)
        if better and now == 0:  # the least gain over any start; an F1 is often 0 at first
            gains.append(-1.0)
            continue
        start = first.setdefault(task.name, now)
        # relative to the sum of both magnitudes, so that a first value near zero cannot dominate
        size = abs(now) + abs(start)
        gain = 0.0 if size == 0 else (now - start) / size
        gains.append(gain if better else -gain)
    return sum(gains) / len(gains) if gains else -math.inf
