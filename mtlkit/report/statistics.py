"""Gains of one run over another, and statistics over tasks and seeds.

There are three measures of the gain over a baseline:

- :func:`log_ratio`, which decides comparisons: symmetric, higher is better;
- :func:`relative_improvement`, as in the RotoGrad paper: in percent of the baseline, higher is better,
  averaged over tasks (:func:`task_improvement`);
- :func:`delta_m`, as in most papers: with the opposite sign, averaged over metrics, lower is better.

NaN is never hidden:

- over tasks, a NaN makes the statistic NaN: a method that failed on one task has no mean;
- over seeds, NaN runs are left out, and :class:`Spread` counts the others;
- the deviation of one run and the test of one pair are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlkit.errors import SpecError

Floats = NDArray[np.float64]
LARGEST_RATIO = 100.0


def log_ratio(value: float, baseline: float, higher_is_better: bool) -> float:
    """Return 100 times the logarithm of the ratio of two metrics, positive if ``value`` is better.

    Small gains are close to percent: an error that is 3 % lower gives +3.05. Large ones are symmetric:
    half the error is +69.3 and twice the error -69.3, whereas relative improvements are +50 and -100.
    Ratios are limited to 100, which is also the ratio to zero and between different signs.

    >>> round(log_ratio(0.5, 1.0, higher_is_better=False), 1)
    69.3
    >>> round(log_ratio(1.0, 0.5, higher_is_better=False), 1)
    -69.3
    """
    if not (math.isfinite(value) and math.isfinite(baseline)):
        return math.nan
    if value == baseline:
        return 0.0
    limit = math.log(LARGEST_RATIO)
    size = limit
    if value * baseline > 0:
        size = min(abs(math.log(abs(value)) - math.log(abs(baseline))), limit)
    return math.copysign(100.0 * size, value - baseline if higher_is_better else baseline - value)


def task_log_ratio(
    values: Mapping[str, float], baseline: Mapping[str, float], higher_is_better: Mapping[str, bool]
) -> float:
    """Average :func:`log_ratio` over the named metrics of a task.

    >>> task_log_ratio({"mse": 2.0, "mae": 1.0}, {"mse": 2.0, "mae": 1.0}, {"mse": False, "mae": False})
    0.0
    """
    return _mean_gain(log_ratio, values, baseline, higher_is_better)


def delta_m(
    values: Mapping[str, float], baseline: Mapping[str, float], higher_is_better: Mapping[str, bool]
) -> float:
    r"""Return :math:`\Delta m` in percent, the mean over all metrics of all tasks; lower is better.

    .. math:: \Delta m = \frac{100}{M} \sum_m (-1)^{h_m} \frac{M_m - S_m}{S_m}

    with :math:`h_m = 1` if higher is better (Maninis et al., 2019, as in Nash-MTL and FAMO). A task with
    five metrics counts five times.

    Args:
        values: metrics by unique name.
        baseline: metrics of single-task networks, such as a published row.
        higher_is_better: metrics to average, and their directions.

    >>> directions = {"iou": True, "mae": False}
    >>> round(delta_m({"iou": 0.4, "mae": 1.1}, {"iou": 0.5, "mae": 1.0}, directions), 1)
    15.0
    """
    return -_mean_gain(relative_improvement, values, baseline, higher_is_better)


def _mean_gain(
    gain: Callable[[float, float, bool], float],
    values: Mapping[str, float],
    baseline: Mapping[str, float],
    higher_is_better: Mapping[str, bool],
) -> float:
    found = [
        gain(values.get(name, math.nan), baseline.get(name, math.nan), higher)
        for name, higher in higher_is_better.items()
    ]
    return float(np.mean(found)) if found else math.nan


def relative_improvement(value: float, baseline: float, higher_is_better: bool) -> float:
    r"""Return the improvement over the baseline in percent, positive if better.

    .. math:: \Delta_k = 100 \cdot (-1)^{l_k} \frac{M_k - S_k}{S_k}

    with :math:`l_k = 1` if lower is better (Maninis et al., 2019). The denominator is :math:`|S_k|`, so
    that improvements of negative metrics are positive, too. With a baseline of zero it is 0 for an equal
    value and NaN for any other; NaN and infinities give NaN.

    >>> relative_improvement(0.5, 1.0, higher_is_better=False)
    50.0
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
    r"""Average :func:`relative_improvement` over the named metrics of a task.

    The RotoGrad paper's :math:`\Delta_k` of NYUv2 are such means, of two to five metrics.

    >>> directions = {"iou": True, "mae": False}
    >>> task_improvement({"iou": 0.75, "mae": 1.0}, {"iou": 0.5, "mae": 1.0}, directions)
    25.0
    """
    return _mean_gain(relative_improvement, values, baseline, higher_is_better)


@dataclass(frozen=True)
class TaskStatistics:
    """Statistics of the improvements of all tasks in one run.

    >>> task_statistics([1.0, 2.0, 6.0])
    TaskStatistics(mean=3.0, median=2.0, minimum=1.0, maximum=6.0, std=2.1602...)
    """

    mean: float
    median: float
    minimum: float
    maximum: float
    std: float


def task_statistics(improvements: Sequence[float] | Floats) -> TaskStatistics:
    """Summarize improvements over tasks; NaN if any task is NaN.

    The tasks are not a sample, so the standard deviation is that of a population.

    >>> task_statistics([1.0, 2.0, 6.0]).median
    2.0
    """
    values = np.asarray(improvements, dtype=np.float64)
    if values.size == 0 or np.isnan(values).any():
        return TaskStatistics(*[math.nan] * 5)
    statistics = (np.mean, np.median, np.min, np.max, np.std)
    return TaskStatistics(*(float(statistic(values)) for statistic in statistics))


@dataclass(frozen=True)
class Spread:
    """Median and standard deviation over the runs that have a value.

    >>> spread([1.0, 2.0, 3.0]).std
    1.0
    """

    median: float
    std: float
    count: int


def spread(values: ArrayLike) -> Spread:
    """Return median and sample standard deviation over seeds, without NaN values.

    The deviation of one run is NaN; without any run, so is the median. An infinite value makes the
    deviation infinite.

    >>> spread([1.0, 2.0, float("nan"), 3.0])
    Spread(median=2.0, std=1.0, count=3)
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size < 2:
        return Spread(float(known[0]) if known.size else math.nan, math.nan, known.size)
    std = math.inf
    if np.isfinite(known).all():  # rounding must not give equal numbers a deviation
        std = float(known.std(ddof=1)) if np.ptp(known) else 0.0
    return Spread(float(np.median(known)), std, known.size)


@dataclass(frozen=True)
class TTest:
    """A one-sided paired t-test.

    Attributes:
        statistic: Student's t, positive if the method is better.
        p_value: one-sided p-value.
        pairs: number of seeds with both values.
        significant: whether ``p_value`` is below the level.

    >>> found = paired_t_test([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], higher_is_better=True)
    >>> round(found.statistic, 2), round(found.p_value, 3)
    (3.46, 0.037)
    """

    statistic: float
    p_value: float
    pairs: int
    significant: bool


def paired_t_test(
    method: ArrayLike, reference: ArrayLike, higher_is_better: bool, level: float = 0.05
) -> TTest:
    """Test whether the method is better than the reference on the same seeds.

    The null hypothesis is that it is equal or worse. Pairs with a value that is not finite are left out.
    The test is undefined (NaN, not significant) with fewer than two pairs or equal differences.

    >>> paired_t_test([0.91, 0.92, 0.94], [0.90, 0.90, 0.91], higher_is_better=True).significant
    True
    """
    from scipy.stats import ttest_1samp

    first, second = (np.asarray(values, dtype=np.float64) for values in (method, reference))
    if first.shape != second.shape or first.ndim != 1:
        raise SpecError(
            f"paired values must be two lists of one length, not {first.shape} and {second.shape}"
        )
    known = np.isfinite(first) & np.isfinite(second)
    first, second = first[known], second[known]
    differences = (first - second) * (1.0 if higher_is_better else -1.0)
    scale = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    if differences.size < 2 or np.ptp(differences) <= 8 * np.finfo(np.float64).eps * scale:
        return TTest(math.nan, math.nan, int(differences.size), False)
    found = ttest_1samp(differences, 0.0, alternative="greater")
    p_value = float(found.pvalue)
    return TTest(float(found.statistic), p_value, int(differences.size), p_value < level)


@dataclass(frozen=True)
class Band:
    """Mean over runs and its confidence limits at each point; NaN if undefined.

    >>> confidence_band([[1.0], [3.0]], level=0.5).high
    array([3.])
    """

    mean: Floats
    low: Floats
    high: Floats


def confidence_band(values: ArrayLike, level: float = 0.9) -> Band:
    """Return mean and confidence interval of the mean at each point: (runs, points) to three (points,).

    The interval is Student's, ``mean ± t * s / sqrt(n)``. NaN is left out; a point with one run has no
    interval.

    >>> band = confidence_band([[1.0], [2.0], [3.0]])
    >>> band.mean, band.low.round(2)
    (array([2.]), array([0.31]))
    """
    from scipy.stats import t

    if not 0 < level < 1:
        raise SpecError(f"the level of a confidence band must be between 0 and 1, not {level}")
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise SpecError(f"values must be (runs, points), not {table.shape}")
    known = np.ma.masked_invalid(table)
    mean, std = known.mean(0).filled(np.nan), known.std(0, ddof=1).filled(np.nan)
    count = np.maximum(known.count(0), 1)
    reach = t.ppf(0.5 + level / 2, count - 1) * std / np.sqrt(count)
    return Band(mean, mean - reach, mean + reach)
