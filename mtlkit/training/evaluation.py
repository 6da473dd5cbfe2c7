"""Metrics of a data set, and the score that selects the best checkpoint."""

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
from mtlkit.training.checks import BestBy, prediction_of
from mtlkit.training.loaders import Batches

Metrics = dict[str, dict[str, float]]
_LARGEST = 14.0
"""Limit of log-ratios, about a factor of a million; also the size of the log-ratio of 0."""


@torch.no_grad()
def evaluate(network: nn.Module, tasks: Sequence[Task], batches: Batches, accelerator: Any) -> Metrics:
    """Return loss and metrics of every task over all batches; random generators are unchanged."""
    device = accelerator.device
    # torchmetrics' sums are float64, which Apple's GPUs lack
    where = torch.device("cpu") if device.type == "mps" else device
    metrics = {task.name: task.make_metrics(where) for task in tasks}
    sums = torch.zeros(len(tasks), 2, dtype=torch.float64, device=where)
    rng = read_rng()
    was_training = network.training
    network.eval()
    try:
        for inputs, targets, labels, _ in batches:
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
        # "compute before update" on a process without labels
        warnings.simplefilter("ignore", UserWarning)
        values = task.compute(metrics)
    if count == 0:
        return {"loss": math.nan, **dict.fromkeys(values, math.nan)}
    return {"loss": math.inf if math.isnan(total) else total / count, **values}


def score(metrics: Metrics, tasks: Sequence[Task], by: BestBy, first: dict[str, float]) -> float:
    """Return the score of a validation; higher is better.

    Args:
        metrics: metrics of the validation.
        tasks: the tasks.
        by: ``"improvement"`` (the mean over tasks of the log-ratio of their metrics to those of the
            first validation), ``"loss"`` (minus the sum of the losses), ``"task/metric"``,
            ``"mean/metric"`` over tasks, or a row of single-task values by ``task/metric`` (minus Delta
            m relative to this row).
        first: metrics of the first validation by ``task/metric``; filled in here.
    """
    if any(math.isinf(metrics[task.name]["loss"]) for task in tasks):
        return -math.inf
    if by == "loss":
        losses = [metrics[task.name]["loss"] for task in tasks]
        total = sum(loss for loss in losses if not math.isnan(loss))
        return -total
    if isinstance(by, Mapping):
        mean = sum(_gains(metrics, tasks, by)) / len(by)
        return mean if math.isfinite(mean) else -math.inf
    if by.startswith("mean/") and all(task.name != "mean" for task in tasks):
        return sum(score(metrics, tasks, f"{t.name}/{by[5:]}", first) for t in tasks) / len(tasks)
    if by != "improvement":
        name, metric = by.rsplit("/", 1)
        better = next(task for task in tasks if task.name == name).higher_is_better.get(metric, False)
        value = metrics[name][metric]
        return (value if better else -value) if math.isfinite(value) else -math.inf
    gains = []
    for task in tasks:
        own = []
        for metric in task.compared or (task.main_metric,):
            now = metrics[task.name].get(metric, math.nan)
            if not math.isnan(now):
                gain = _log_ratio(now, first, f"{task.name}/{metric}")
                own.append(gain if task.higher_is_better.get(metric, False) else -gain)
        if own:
            gains.append(sum(own) / len(own))
    return sum(gains) / len(gains) if gains else -math.inf


def percent_behind(
    metrics: Metrics, tasks: Sequence[Task], single_task_metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return by how many percent each task is worse than its single-task model; negative if better.

    It is the mean over the given metrics, 0 for a task without any.
    """
    behind = {}
    for task in tasks:
        row = {f"{task.name}/{k}": v for k, v in single_task_metrics.get(task.name, {}).items() if v}
        gains = [gain for gain in _gains(metrics, [task], row) if math.isfinite(gain)]
        behind[task.name] = -sum(gains) / len(gains) if gains else 0.0
    return behind


def _gains(metrics: Metrics, tasks: Sequence[Task], row: Mapping[str, float]) -> list[float]:
    """Return the gain of each metric over a single-task row, in percent; higher is better."""
    higher = {f"{task.name}/{name}": up for task in tasks for name, up in task.higher_is_better.items()}
    gains = []
    for key, single in row.items():
        name, metric = key.rsplit("/", 1)
        gain = 100 * (metrics[name][metric] - single) / abs(single)
        gains.append(gain if higher.get(key, False) else -gain)
    return gains


def mean_metrics(rows: Sequence[Metrics]) -> Metrics:
    """Return the mean of every metric over several evaluations."""
    return {
        task: {name: sum(row[task][name] for row in rows) / len(rows) for name in values}
        for task, values in rows[0].items()
    }


def _log_ratio(now: float, first: dict[str, float], key: str) -> float:
    """Return log(now / first), limited to ±14; for negative metrics, a relative difference."""
    if now == 0:  # an F1 is often 0 at first, which would make all later ratios infinite
        return -_LARGEST
    start = first.setdefault(key, now)
    if now > 0 and start > 0:
        return max(-_LARGEST, min(_LARGEST, math.log(now / start)))
    return 2 * (now - start) / (abs(now) + abs(start))
