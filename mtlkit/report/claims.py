"""The tests of a comparison: the primary endpoint first, tasks only for the methods that it finds.

Every method is tested against the reference, and the reference and every method against the single-task
networks: one family, in which the chance of any false finding is 0.05. The tests are two-sided, unlike
the paper's: a method may be found better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mtlkit.report.figures import Column, MetricTable
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Interval, endpoint_intervals, estimate, task_intervals
from mtlkit.report.statistics import Floats


@dataclass(frozen=True)
class Claims:
    """What the tests of a comparison found.

    Attributes:
        reference: intervals of the methods against the reference.
        single_task: intervals of the reference and the methods against the single-task networks.
        columns: intervals against the reference, by method and key of the column: the endpoint and each
            task's main metric. On tasks, methods that the endpoint did not find have no p-value.
        tests: number of tests of the endpoint that the correction is over.
        detectable: smallest difference to the reference that would have been found, with a chance of
            80 %; NaN where nothing was tested.
    """

    reference: dict[str, Interval] = field(default_factory=dict)
    single_task: dict[str, Interval] = field(default_factory=dict)
    columns: dict[tuple[str, str], Interval] = field(default_factory=dict)
    tests: int = 0
    detectable: float = math.nan

    def on_tasks(self, label: str, columns: Sequence[Column], *, better: bool) -> list[str]:
        """Give the tasks on which a method is better, or worse."""
        found = [(column.group, self.columns[label, column.key]) for column in columns]
        return [task for task, each in found if (each.better if better else each.worse)]


def compare_methods(comparison: Comparison, table: MetricTable) -> Claims:
    """Make all tests of a comparison."""
    column, labels = table.primary, comparison.labels
    reference, single = comparison.reference, comparison.baseline
    if column is None or not table.all_seeds:
        return Claims()
    known = [label for label in labels if label != single]
    methods = [label for label in known if label != reference]

    def differences(names: Sequence[str], other: str | None, on: Column) -> Floats:
        rows = [table.differences(name, other, on) for name in names if other in labels and other]
        return np.array(rows).reshape(-1, len(table.all_seeds))

    first, second = differences(methods, reference, column), differences(known, single, column)
    against, alone = endpoint_intervals(first, second)
    tests = max(sum(not math.isnan(each.p_value) for each in (*against, *alone)), 1)
    by_column = {(label, column.key): each for label, each in zip(methods, against, strict=False)}
    if against:
        found = [each.better or each.worse for each in against]
        by_task = [differences(methods, reference, each) for each in table.main_metrics]
        for task, intervals in zip(
            table.main_metrics, task_intervals(by_task, found, tests), strict=True
        ):
            by_column |= {(label, task.key): one for label, one in zip(methods, intervals, strict=True)}
    return Claims(
        dict(zip(methods, against, strict=False)),
        dict(zip(known, alone, strict=False)),
        by_column,
        tests,
        estimate(first).detectable(tests) if against else math.nan,
    )
