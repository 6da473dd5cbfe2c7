"""The verdict on a comparison: a status for every method, never stronger than the tests.

The primary endpoint is tested first; tasks are only tested for the methods it finds. Every method is
tested against the reference, and the reference and every method against the single-task networks: one
family with a family-wise error rate of 0.05. The tests are two-sided, unlike the RotoGrad paper's, so a
method can be found better or worse.

A method is ``better`` or ``worse`` than the reference if the primary endpoint differs significantly,
``level`` if the corrected interval lies within one point (two one-sided tests), and otherwise ``not
decided``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtlkit.report.endpoint import Endpoint
from mtlkit.report.metric_table import PRIMARY, Column, MetricTable, collect_metrics
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Interval, endpoint_intervals, estimate, task_intervals
from mtlkit.report.statistics import Floats, log_ratio
from mtlkit.report.verdict_text import Finding, Status, summarize

MARGIN = 1.0
"""Largest difference, in points, of methods that are level."""
_MANY_LATE = 1 / 3
"""Fraction of runs whose last validation was the best that is worth a sentence."""


@dataclass(frozen=True)
class Verdict:
    """The findings of a comparison.

    Attributes:
        findings: the methods against the reference.
        single_task: the reference and the methods against the single-task networks.
        sentences: summary, with one sentence per status; empty if there is nothing to compare.
        detectable: smallest difference that this comparison finds with a power of 80%; NaN without a
            test.
        intervals: differences to the reference by method and column key, for the endpoint and the main
            metric of each task. On tasks, methods with an insignificant endpoint have no p-value.
        tests: number of tests of the endpoint, for the correction.

    >>> from mtlkit.report import Comparison, Run, TaskRecord
    >>> runs = [
    ...     Run(label, seed, metrics={"left": {"accuracy": accuracy + 0.001 * seed}})
    ...     for label, accuracy in (("sum", 0.8), ("pcgrad", 0.9))
    ...     for seed in range(5)
    ... ]
    >>> tasks = [TaskRecord("left", {"accuracy": True})]
    >>> judge(Comparison("digits", tasks, runs, reference="sum")).labels("better")
    ['pcgrad']
    """

    findings: tuple[Finding, ...] = ()
    single_task: tuple[Finding, ...] = ()
    sentences: tuple[str, ...] = ()
    detectable: float = math.nan
    intervals: Mapping[tuple[str, str], Interval] = field(default_factory=dict)
    tests: int = 0

    @property
    def text(self) -> str:
        """The summary."""
        return " ".join(self.sentences)

    def labels(self, status: Status) -> list[str]:
        """Return the methods with this status against the reference."""
        return [each.method for each in self.findings if each.status == status]


def judge(comparison: Comparison, table: MetricTable | None = None) -> Verdict:
    """Return the verdict on the finished runs of a comparison.

    >>> from mtlkit.report import Comparison, Run, TaskRecord
    >>> runs = [Run(label, 0, metrics={"left": {"accuracy": 0.9}}) for label in ("sum", "pcgrad")]
    >>> judge(Comparison("digits", [TaskRecord("left", {"accuracy": True})], runs, reference="sum")).text
    'Inconclusive with 1 seed: run five seeds or more.'
    """
    table = collect_metrics(comparison) if table is None else table
    reference, seeds = str(comparison.reference), len(comparison.seeds)
    intervals, alone, tests, detectable = _test(comparison, table)
    sentences = _length_note(comparison)
    if len(comparison.labels) < 2 or seeds < 2:
        if len(comparison.labels) > 1:
            sentences = ("Inconclusive with 1 seed: run five seeds or more.", *sentences)
        return Verdict(sentences=sentences, intervals=intervals, tests=tests)
    endpoint, findings = Endpoint.of(comparison), []
    for label in dict.fromkeys(label for label, _ in intervals):
        interval = intervals[label, PRIMARY]
        on_tasks = {task.group: intervals[label, task.key] for task in table.main_metrics}
        findings.append(
            Finding(
                label,
                reference,
                _status(interval),
                interval,
                tuple(task for task, each in on_tasks.items() if each.better),
                tuple(task for task, each in on_tasks.items() if each.worse),
                _uncounted(table, label, reference, endpoint),
                seeds - interval.pairs,
            )
        )
    single_task = tuple(
        Finding(label, str(comparison.baseline), _status(interval), interval)
        for label, interval in alone.items()
    )
    summary = summarize(findings, single_task, endpoint, seeds, detectable)
    return Verdict(tuple(findings), single_task, (*summary, *sentences), detectable, intervals, tests)


def _test(
    comparison: Comparison, table: MetricTable
) -> tuple[dict[tuple[str, str], Interval], dict[str, Interval], int, float]:
    """Return ``intervals``, those to single-task networks by method, ``tests`` and ``detectable``."""
    column, labels = table.primary, comparison.labels
    reference, single = comparison.reference, comparison.baseline
    if column is None or not table.all_seeds or not comparison.tasks:
        return {}, {}, 0, math.nan
    known = [label for label in labels if label != single]
    methods = [label for label in known if label != reference]

    def differences(names: Sequence[str], other: str | None, on: Column) -> Floats:
        rows = [table.differences(name, other, on) for name in names if other in labels and other]
        return np.array(rows).reshape(-1, len(table.all_seeds))

    first, second = differences(methods, reference, column), differences(known, single, column)
    against, alone = endpoint_intervals(first, second)
    tests = sum(not math.isnan(each.p_value) for each in (*against, *alone))
    intervals = {(label, column.key): each for label, each in zip(methods, against, strict=False)}
    if against:
        tasks = table.main_metrics
        by_task = [differences(methods, reference, task) for task in tasks]
        found = [each.better or each.worse for each in against]
        for task, made in zip(tasks, task_intervals(by_task, found, max(tests, 1)), strict=True):
            intervals |= {(label, task.key): each for label, each in zip(methods, made, strict=True)}
    detectable = estimate(first).detectable(max(tests, 1)) if against else math.nan
    return intervals, dict(zip(known, alone, strict=False)), tests, detectable


def _status(interval: Interval) -> Status:
    if math.isnan(interval.p_value):
        return "not tested"
    if interval.better or interval.worse:
        return "better" if interval.better else "worse"
    return "level" if interval.within(MARGIN) else "not decided"


def _uncounted(table: MetricTable, label: str, reference: str, endpoint: Endpoint) -> dict[str, float]:
    """Return the mean log-ratio to the reference of each task that the endpoint leaves out."""
    found = {}
    for column in table.main_metrics:
        if column.group in endpoint.left_out:
            pairs = zip(*table.paired(label, reference, column.key), strict=True)
            gains = [log_ratio(*pair, bool(column.higher_is_better)) for pair in pairs]
            known = [gain for gain in gains if math.isfinite(gain)]
            if known:
                found[column.group] = sum(known) / len(known)
    return found


def _length_note(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence if many runs were still improving when they ended."""
    judged = [run for run in comparison.runs if run.best_last is not None and not run.kind]
    late = sum(bool(run.best_last) for run in judged)
    if not late or late < _MANY_LATE * len(judged):
        return ()
    return (f"{late} of {len(judged)} runs were best at their last validation: train longer.",)
