"""Synthetic tasks with known groups, and the groups that ``mtlkit.diagnose`` finds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import mtlkit
from mtlkit import Task
from mtlkit.diagnosis import Diagnosis
from mtlkit.diagnosis.groups import best_cut

INPUTS, SAMPLES, BATCH, NOISE = 20, 4096, 64, 0.3


def draw(seed: int, sizes: Sequence[int], strength: float) -> tuple[Tensor, Tensor]:
    """Return inputs (N, 20) and targets (N, K), standardized, of tasks in groups of the given sizes.

    The target of a task is the square root of ``strength`` times a function that its group shares, plus
    a function of its own, plus noise. The functions are random networks with one hidden layer, so tasks
    of different groups are related by chance only.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, INPUTS, generator=generator)

    def function() -> Tensor:
        hidden = torch.tanh(1.5 * x @ torch.randn(INPUTS, 16, generator=generator) / INPUTS**0.5)
        values = hidden @ torch.randn(16, generator=generator)
        return (values - values.mean()) / values.std()

    targets = []
    for size in sizes:
        shared = function()
        for _ in range(size):
            target = strength**0.5 * shared + (1 - strength) ** 0.5 * function()
            target = target + NOISE * torch.randn(SAMPLES, generator=generator)
            targets.append(target / target.std())
    return x, torch.stack(targets, dim=1)


def labels_of(y: Tensor, kind: str) -> Tensor:
    """Return the labels (N, K) of targets; ``binary`` tasks ask for the sign of the target."""
    return y if kind == "regression" else (y > 0).float()


def found_in_targets(seed: int, sizes: Sequence[int], strength: float, kind: str) -> bool:
    """Return whether correlations of the labels, over all samples, are cut into the planted groups.

    No network takes part, so this is a limit: where it fails, the functions of the tasks' own are as
    similar by chance as the planted groups.
    """
    found = np.abs(np.corrcoef(labels_of(draw(seed, sizes, strength)[1], kind).numpy().T))
    rows, columns = np.triu_indices(len(found), 1)
    cut, _ = best_cut(found[rows, columns], rows, columns, len(found))
    group = np.repeat(np.arange(len(sizes)), sizes)
    return bool(((cut[rows] == cut[columns]) == (group[rows] == group[columns])).all())


def diagnose(
    seed: int, sizes: Sequence[int], strength: float, kind: str = "regression", steps: int = 200
) -> Diagnosis:
    """Diagnose a small network on such tasks."""
    x, y = draw(seed, sizes, strength)
    names = [f"t{k}" for k in range(y.shape[1])]
    make = Task.regression if kind == "regression" else Task.binary
    tasks = [make(name) for name in names]
    columns = labels_of(y, kind)[..., None] if kind == "regression" else labels_of(y, kind)
    torch.manual_seed(seed)
    model = mtlkit.create_architecture(f"hard_sharing(backbone=mlp(64, 32, inputs={INPUTS}))", tasks)
    order = torch.randperm(SAMPLES).split(BATCH)
    batches = [(x[i], {name: columns[i, k] for k, name in enumerate(names)}) for i in order]
    return mtlkit.diagnose(model, tasks, batches, steps, seed=seed, progress=False)


def planted(sizes: Sequence[int]) -> list[list[int]]:
    """Return the planted groups; tasks that are all single are no groups: all together."""
    if max(sizes) == 1:
        return [list(range(len(sizes)))]
    tasks = iter(range(sum(sizes)))
    return [[next(tasks) for _ in range(size)] for size in sizes]
