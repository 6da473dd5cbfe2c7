"""The paper's statistics: relative improvement, medians over seeds, paired t-test, confidence bands.

NaN is never hidden:

- over tasks, a NaN makes the statistic NaN: a method that failed on one task has no average;
- over seeds, NaN runs are left out, and :class:`Spread` says how many are left;
- a spread of one run, and a test of one pair, are NaN: one seed says nothing about chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlkit.errors import SpecError

Floats = NDArray[np.float64]


def relative_improvement(value: float, baseline: float, higher_is_better: bool) -> float:
    r"""Improvement over the baseline in percent, positive where better.

    .. math:: \Delta_k = 100 \cdot (-1)^{l_k} \frac{M_k - S_k}{S_k}

    with :math:`l_k = 1` where lower is better (Maninis et al., 2019). The denominator is taken as
    :math:`|S_k|`, so that better stays positive for metrics below zero. With a baseline of zero it is 0
    for an equal value and NaN for any other; NaN and infinities give NaN.
    """
    if not (math.isfinite(value) and math.isfinite(baseline)):
        return math.nan
    if baseline == 0:
        return 0.0 if value == 0 else math.nan
    sign = 1.0 if higher_is_better else -1.0
    return 100.0 * sign * (value - baseline) / abs(baseline)


def task_improvement(
    values: Mapping[str, float], baseline: Mapping[str, float], higher_is_better: Mapping[str, bool]
) -> float:
    r""":math:`\Delta_k` of a task with several metrics: the mean over the metrics that are named.

    This is how the paper's figures for NYUv2 come about, where a task has two to five metrics.
    """
    gains = [
        relative_improvement(values.get(name, math.nan), baseline.get(name, math.nan), higher)
        for name, higher in higher_is_better.items()
    ]
    return float(np.mean(gains)) if gains else math.nan


@dataclass(frozen=True)
class TaskStatistics:
    """Statistics of the improvements of all tasks in one run."""

    mean: float
    median: float
    minimum: float
    maximum: float
    std: float


def task_statistics(improvements: Sequence[float] | Floats) -> TaskStatistics:
    """Mean, median, minimum, maximum and standard deviation over tasks; NaN where any task is NaN.

    The tasks are all there are, not a sample of some, so the deviation divides by their number.
    """
    values = np.asarray(improvements, dtype=np.float64)
    if values.size == 0 or np.isnan(values).any():
        return TaskStatistics(*[math.nan] * 5)
    return TaskStatistics(
        float(values.mean()),
        float(np.median(values)),
        float(values.min()),
        float(values.max()),
        float(values.std()),
    )


@dataclass(frozen=True)
class Spread:
    """Median and standard deviation over the runs that have a value."""

    median: float
    std: float
    count: int


def spread(values: ArrayLike) -> Spread:
    """Median and sample standard deviation over seeds; NaN values are left out.

    The deviation of one run is NaN; without any run, so is the median. An infinite value counts for
    the median and makes the deviation infinite.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        return Spread(math.nan, math.nan, 0)
    if known.size == 1:
        return Spread(float(known[0]), math.nan, 1)
    std = float(known.std(ddof=1)) if np.isfinite(known).all() else math.inf
    if std < math.inf and known.min() == known.max():
        std = 0.0  # the mean of equal numbers is rounded, which would give them a deviation above zero
    return Spread(float(np.median(known)), std, int(known.size))


@dataclass(frozen=True)
class TTest:
    """A one-sided paired t-test.

    Attributes:
        statistic: Student's t, positive where the method is better.
        p_value: chance of such a t, or a larger one, if the method were no better.
        pairs: seeds with both values.
        significant: whether ``p_value`` is below the level.
    """

    statistic: float
    p_value: float
    pairs: int
    significant: bool


def paired_t_test(
    method: ArrayLike, reference: ArrayLike, higher_is_better: bool, level: float = 0.05
) -> TTest:
    """Is the method better than the reference on the same seeds?

    The null hypothesis is that it is equal or worse. Pairs with a value that is not finite are left
    out; fewer than two pairs leave the test undefined (NaN, not significant). Where all differences
    are the same, t is infinite, and the method is significantly better if the difference is in its
    favor; where all are zero, t is 0 and p is 1/2.
    """
    first, second = (np.asarray(values, dtype=np.float64) for values in (method, reference))
    if first.shape != second.shape or first.ndim != 1:
        raise SpecError(
            f"paired values must be two lists of one length, not {first.shape}, {second.shape}"
        )
    known = np.isfinite(first) & np.isfinite(second)
    differences = (first - second)[known] * (1.0 if higher_is_better else -1.0)
    count = int(differences.size)
    if count < 2:
        return TTest(math.nan, math.nan, count, False)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    # differences that agree up to rounding have no spread
    scale = float(np.abs(np.concatenate([first[known], second[known]])).max())
    if error <= 4 * np.finfo(np.float64).eps * scale:
        if abs(mean) <= 4 * np.finfo(np.float64).eps * scale:
            return TTest(0.0, 0.5, count, False)
        better = mean > 0
        return TTest(math.copysign(math.inf, mean), 0.0 if better else 1.0, count, better)
    statistic = mean / error
    p_value = _student_survival(statistic, count - 1)
    return TTest(statistic, p_value, count, p_value < level)


@dataclass(frozen=True)
class Band:
    """Mean over runs and its confidence limits, one value per point; NaN where there are none."""

    mean: Floats
    low: Floats
    high: Floats


def confidence_band(values: ArrayLike, level: float = 0.9) -> Band:
    """Mean and confidence interval of the mean at each point: (runs, points) to three (points,).

    The interval is Student's, ``mean ± t * s / sqrt(n)``. NaN is left out; a point with one run has a
    mean and no interval.
    """
    if not 0 < level < 1:
        raise SpecError(f"the level of a confidence band is between 0 and 1, not {level}")
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise SpecError(f"values must be (runs, points), not {table.shape}")
    known = np.isfinite(table)
    count = known.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, table, 0.0).sum(0) / count
        variance = np.where(known, (table - mean) ** 2, 0.0).sum(0) / (count - 1)
        reach = _student_quantile(0.5 + level / 2, count - 1) * np.sqrt(variance / count)
    mean = np.where(count > 0, mean, np.nan)
    reach = np.where(count > 1, reach, np.nan)
    return Band(mean, mean - reach, mean + reach)


def _student_survival(statistic: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, -statistic))


def _student_quantile(share: float, freedom: NDArray[np.integer]) -> Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(freedom, 1).astype(np.float64), share))
