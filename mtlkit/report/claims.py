"""Methods against a reference: intervals, and tests that are corrected for their number.

The tests are two-sided, unlike the paper's: a comparison may find a method better or worse, and the
chance of any false finding of either kind shall be 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mtlkit.report.figures import Column, Figures
from mtlkit.report.significance import Difference, holm, paired_difference
from mtlkit.report.statistics import paired_t_test

LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """One method against the reference on one column.

    Attributes:
        difference: positive where the method is better.
        p_value: of the two-sided test, after Holm's correction.
    """

    difference: Difference
    p_value: float = math.nan

    @property
    def wins(self) -> bool:
        """Significantly better."""
        return self.p_value < LEVEL and self.difference.mean > 0

    @property
    def loses(self) -> bool:
        """Significantly worse."""
        return self.p_value < LEVEL and self.difference.mean < 0


def compare_methods(
    figures: Figures, labels: Sequence[str], reference: str, columns: Sequence[Column]
) -> dict[tuple[str, str], Claim]:
    """Test methods against the reference on some columns; all tests are one family for Holm."""
    higher = {column.key: bool(column.higher_is_better) for column in columns}
    pairs = {(label, key): figures.paired(label, reference, key) for label in labels for key in higher}
    adjusted = holm([_p_value(*pair) for pair in pairs.values()])
    return {
        (label, key): Claim(paired_difference(*pair, higher[key]), p_value)
        for ((label, key), pair), p_value in zip(pairs.items(), adjusted, strict=True)
    }


def _p_value(method: list[float], reference: list[float]) -> float:
    """Of the two-sided paired t-test; of the sign test where the differences have no spread.

    By chance, a coarse metric can differ by the same amount on two or three seeds. Student's t is then
    infinite, and would call that certain.
    """
    test = paired_t_test(method, reference, True)
    if math.isinf(test.statistic):
        return 2 * 0.5**test.pairs
    return 2 * min(test.p_value, 1 - test.p_value)


def family(figures: Figures) -> list[Column]:
    """The columns that are tested together: each task's main metric, and the mean over tasks."""
    first: dict[str, Column] = {}
    for column in figures.columns:
        if column.kind == "metric":
            first.setdefault(column.group, column)
    overall = figures.overall
    return [*first.values(), *([] if overall is None else [overall])]
