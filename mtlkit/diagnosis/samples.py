"""Which samples of a batch are labeled for which tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtlkit.tasks import Task
from mtlkit.tasks.overlap import labeled_samples
from mtlkit.training.loaders import Batch


def shared_samples(tasks: Sequence[Task], batch: Batch) -> NDArray[np.int64]:
    """(K, K) number of samples of a batch that are labeled for both tasks.

    Where the inputs are a mapping by task, every task has samples of its own.
    """
    own_inputs = isinstance(batch.inputs, Mapping) and set(batch.inputs) <= {t.name for t in tasks}
    masks = []
    for task in tasks:
        target = batch.targets.get(task.name)
        labels = batch.labels[task.name]
        masks.append(None if target is None else labeled_samples(task, target, labels))
    table = np.zeros((len(tasks), len(tasks)), dtype=np.int64)
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            if one is not None and other is not None and (i == j or not own_inputs):
                table[i, j] = int((one & other).sum())
    return table
