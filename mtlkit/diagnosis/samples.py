"""Which samples of a batch are labelled for which tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.tasks import Task
from mtlkit.tasks.labels import all_known, labelled_rows
from mtlkit.training.loaders import Batch

__all__ = ["shared_samples"]


def shared_samples(tasks: Sequence[Task], batch: Batch) -> NDArray[np.int64]:
    """(K, K) number of samples of a batch that are labelled for both tasks."""
    own_inputs = isinstance(batch.inputs, Mapping) and set(batch.inputs) <= {t.name for t in tasks}
    masks = [_labelled_samples(task, batch.targets.get(task.name)) for task in tasks]
    table = np.zeros((len(tasks), len(tasks)), dtype=np.int64)
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            if one is not None and other is not None and (i == j or not own_inputs):
                table[i, j] = int((one & other).sum())
    return table


def _labelled_samples(task: Task, target: Tensor | None) -> NDArray[np.bool_] | None:
    if target is None:
        return None
    if all_known(task.labels, target):
        return np.ones(len(target), dtype=bool)
    mask = labelled_rows(target) if task.labels is None else task.labels(target)
    return mask.reshape(len(target), -1).any(dim=1).cpu().numpy()
