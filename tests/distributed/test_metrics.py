"""Metrics of two processes are those of one, also where one of them has no label."""

import math

import pytest
import torch

from mtlkit import Task
from tests.distributed.launch import run_processes


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    prediction = torch.randn(41, 1, generator=random)
    target = (torch.rand(41, 1, generator=random) < 0.4).float()
    target[30:] = math.nan
    return prediction, target


def metrics_of(rank: int, world: int, first: int) -> dict[str, float]:
    """Metrics of a binary task whose samples from ``first`` on are the second process's."""
    prediction, target = samples()
    task = Task.binary("b")
    metrics = task.make_metrics()
    mine = slice(None) if world == 1 else slice(first, None) if rank else slice(first)
    task.update(metrics, prediction[mine], target[mine])
    return task.compute(metrics)


@pytest.mark.parametrize("first", [7, 30])
def test_a_binary_tasks_metrics_do_not_depend_on_the_processes(first):
    alone = metrics_of(0, 1, first)
    for found in run_processes(metrics_of, first):
        assert found == pytest.approx(alone)
