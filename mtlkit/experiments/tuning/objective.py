"""What a trial is judged by: validation metrics, relative to one plain run, the same for every method.

The sum of the validation losses would follow the task with the largest loss. A relative gain has no
scale: for each metric the difference to the reference run, divided by the mean of both magnitudes. It is
near the relative change while that is small, and never beyond 200 % either way, so that one metric near
zero cannot outweigh all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mtlkit.errors import UsageError
from mtlkit.report.results import TaskRecord

WORST = -200.0
"""Value of a trial that failed or whose metrics are not finite."""

Metrics = Mapping[str, Mapping[str, float]]


def improvement(metrics: Metrics, reference: Metrics, tasks: Sequence[TaskRecord]) -> float:
    """Return the mean over tasks of the relative gain in percent, the higher the better.

    A task's gain is the mean over the metrics that it is compared by. Metrics that the reference does
    not have (no validation labels) are left out.
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
        raise UsageError("the reference run has no finite validation metric, so nothing can be judged")
    return sum(gains) / len(gains)


def _gain(now: float, before: float, higher_is_better: bool) -> float:
    if not math.isfinite(now):
        return WORST
    size = (abs(now) + abs(before)) / 2
    if size == 0:
        return 0.0
    return 100 * (now - before if higher_is_better else before - now) / size
