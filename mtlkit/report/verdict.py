"""What a comparison found: a status for every method, in words that are never stronger than the tests.

A method is ``better`` or ``worse`` than the reference where the primary endpoint differs significantly,
``level`` where the corrected interval lies within one point (two one-sided tests), and otherwise ``not
decided``. :mod:`mtlkit.report.claims` has the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mtlkit.report.claims import Claims, compare_methods
from mtlkit.report.endpoint import Endpoint
from mtlkit.report.figures import MetricTable, collect_metrics
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Interval
from mtlkit.report.statistics import log_ratio
from mtlkit.report.verdict_text import Finding, Status, summarize

MARGIN = 1.0
"""Points within which two methods are called level."""


@dataclass(frozen=True)
class Verdict:
    """The findings of a comparison.

    Attributes:
        findings: the methods against the reference.
        single_task: the reference and the methods against the single-task networks.
        sentences: a summary, one sentence per status; none where there is nothing to compare.
        detectable: smallest difference that this comparison would have found with a chance of 80 %.
    """

    findings: tuple[Finding, ...] = ()
    single_task: tuple[Finding, ...] = ()
    sentences: tuple[str, ...] = ()
    detectable: float = math.nan

    @property
    def text(self) -> str:
        """All sentences of the summary."""
        return " ".join(self.sentences)

    def labels(self, status: Status, *, single_task: bool = False) -> list[str]:
        """Give the methods of a status."""
        findings = self.single_task if single_task else self.findings
        return [each.method for each in findings if each.status == status]


def judge(
    comparison: Comparison, table: MetricTable | None = None, claims: Claims | None = None
) -> Verdict:
    """Give the verdict on a comparison, from the runs that are finished."""
    if len(comparison.labels) < 2:
        return Verdict()
    if len(comparison.seeds) < 2:
        return Verdict(sentences=("Inconclusive with 1 seed: run five seeds or more.",))
    table = collect_metrics(comparison) if table is None else table
    claims = compare_methods(comparison, table) if claims is None else claims
    findings = tuple(
        Finding(
            label,
            str(comparison.reference),
            _status(interval),
            interval,
            tuple(claims.on_tasks(label, table.main_metrics, better=True)),
            tuple(claims.on_tasks(label, table.main_metrics, better=False)),
            _uncounted(comparison, table, label),
            len(comparison.seeds) - interval.pairs,
        )
        for label, interval in claims.reference.items()
    )
    single_task = tuple(
        Finding(label, str(comparison.baseline), _status(interval), interval)
        for label, interval in claims.single_task.items()
    )
    endpoint = Endpoint.of(comparison)
    sentences = summarize(findings, single_task, endpoint, len(comparison.seeds), claims.detectable)
    return Verdict(findings, single_task, tuple(sentences), claims.detectable)


def _status(interval: Interval) -> Status:
    if math.isnan(interval.p_value):
        return "not tested"
    if interval.better or interval.worse:
        return "better" if interval.better else "worse"
    return "level" if interval.within(MARGIN) else "not decided"


def _uncounted(comparison: Comparison, table: MetricTable, label: str) -> dict[str, float]:
    """Mean log-ratios to the reference on the tasks that the primary endpoint leaves out."""
    found = {}
    left_out = Endpoint.of(comparison).left_out
    for column in table.main_metrics:
        if column.group in left_out:
            pairs = zip(*table.paired(label, str(comparison.reference), column.key), strict=True)
            gains = [log_ratio(*pair, bool(column.higher_is_better)) for pair in pairs]
            known = [gain for gain in gains if math.isfinite(gain)]
            if known:
                found[column.group] = sum(known) / len(known)
    return found
