"""The objective of a trial: its validation metrics relative to a reference run with the plain sum.

The sum of validation losses would follow the task with the largest loss. The relative gain is free of
scale: the difference to the reference run divided by the mean of both magnitudes. Small gains are close
to the relative change, and no gain exceeds 200%, so that a metric near zero cannot outweigh the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mtlkit.errors import UsageError
from mtlkit.report.results import TaskRecord

WORST = -200.0
"""Value of a failed trial, or of a metric that is not finite."""

Metrics = Mapping[str, Mapping[str, float]]


def improvement(metrics: Metrics, reference: Metrics, tasks: Sequence[TaskRecord]) -> float:
    """Return the mean over tasks of the relative gain in percent; higher is better.

    The gain of a task is the mean over its compared metrics. Metrics that the reference lacks (no
    validation labels) are left out.
    """
    gains = []
    for task in tasks:
        own = [
            _gain(metrics.get(task.name, {}).get(name, math.nan), before, higher)
            for name, higher in task.directions.items()
            if math.isfinite(before := reference.get(task.name, {}).get(name, math.nan))
        ]
        if own:
            gains.append(sum(own) / len(own))
    if not gains:
        raise UsageError("the reference run has no finite validation metric, so no trial can be judged")
    return sum(gains) / len(gains)


def _gain(now: float, before: float, higher_is_better: bool) -> float:
    if not math.isfinite(now):
        return WORST
    size = (abs(now) + abs(before)) / 2
    if size == 0:
        return 0.0
    return 100 * (now - before if higher_is_better else before - now) / size
