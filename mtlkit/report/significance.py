"""Tests of several methods over few seeds, corrected for multiple testing.

With three seeds a paired t-test has two degrees of freedom and little power. But methods on one data set
have similar variances. So each test uses the larger of two variances: that of its own differences, and
the mean over all methods. The first protects against a method that varies more than the others and
against runs that collapse; the second against a variance that is small by chance, and it has the degrees
of freedom of all methods. The more the own variance exceeds the mean, the fewer of these are used, down
to those of the paired t-test. The rule was chosen by a simulation of false positives and power under
seven kinds of noise, in ``benchmarks/results/statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mtlkit.report.statistics import Floats

LEVEL = 0.05
"""Family-wise error rate of a comparison."""
POWER = 0.8
_SHARED = 0.25
"""Squared correlation of two differences to one reference, if all runs have equal variances."""
_PERMUTATIONS = 10_000


def holm(p_values: ArrayLike) -> Floats:
    r"""Correct p-values by Holm's step-down rule (1979), along the last axis.

    The k-th smallest of m is multiplied by :math:`m - k + 1`, and the results are made monotone. The
    probability that any true null hypothesis ends below 0.05 is at most 0.05, for any dependence between
    the tests. NaN, a test that was not made, stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, axis=-1, kind="stable")  # NaN last
    ordered = np.take_along_axis(values, order, -1)
    made = np.count_nonzero(~np.isnan(values), axis=-1)[..., None]
    steps = ordered * np.maximum(made - np.arange(values.shape[-1]), 1)
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(steps, -1), 1.0), -1)
    return adjusted


@dataclass(frozen=True)
class Estimates:
    """Means of paired differences, one per test, with their standard errors.

    Attributes:
        mean: mean over the pairs.
        error: standard error, from the larger of the own variance and the mean over all tests.
        freedom: degrees of freedom of the error, fewer if the own variance is above the mean.
        pairs: number of finite differences; a test needs at least two.
        typical: standard error of a complete test whose own variance is not above the mean.

    >>> found = estimate([[1.0, 2.0, 3.0], [2.0, 2.0, 2.3]])  # two methods, three seeds
    >>> found.pairs, found.reach(tests=2).round(1)
    (array([3., 3.]), array([3.6, 1.7]))
    """

    mean: Floats
    error: Floats
    freedom: Floats
    pairs: Floats
    typical: Floats

    @property
    def p_values(self) -> Floats:
        """Two-sided p-values, not corrected; NaN for a test that is not made.

        Equal differences, which occur with a coarse metric, have the p-value of the sign test.
        """
        from scipy.stats import t

        with np.errstate(divide="ignore", invalid="ignore"):
            found = 2 * t.sf(np.abs(self.mean / self.error), self.freedom)
        signs = np.where(self.mean == 0, 1.0, 2 * 0.5**self.pairs)
        found = np.where(self.error > 0, found, np.minimum(signs, 1.0))
        return np.where(self.pairs > 1, found, math.nan)

    def reach(self, tests: int) -> Floats:
        """Return half the width of simultaneous confidence intervals of this number of tests."""
        from scipy.stats import t

        return np.asarray(t.isf(LEVEL / 2 / tests, self.freedom) * self.error)

    def detectable(self, tests: int) -> float:
        """Return the smallest difference that is found with a power of 80%; NaN without a test."""
        from scipy.optimize import brentq
        from scipy.stats import nct, t

        freedom, typical = float(np.max(self.freedom)), float(np.min(self.typical))
        if not (freedom >= 1 and typical > 0):
            return math.nan
        critical = float(t.isf(LEVEL / 2 / tests, freedom))
        shift = brentq(lambda size: nct.sf(critical, freedom, size) - POWER, 0.0, 3 * critical + 3)
        return float(shift) * typical


def estimate(differences: ArrayLike) -> Estimates:
    """Estimate the means of paired differences to one reference: (..., tests, seeds), NaN where missing.

    The mean variance over T tests of n seeds has ``T (n - 1) / (1 + (T - 1) / 4)`` degrees of freedom,
    because the tests share the noise of their reference. A test whose own variance is r times the mean
    has 1/r of them, but at least n - 1. A single test is the ordinary paired t-test.

    >>> found = estimate([[1.0, 2.0, 3.0], [2.0, 2.0, 2.3]])
    >>> found.mean.round(2), found.error.round(2), found.p_values.round(3)
    (array([2. , 2.1]), array([0.58, 0.41]), array([0.074, 0.013]))
    """
    values = np.ma.masked_invalid(np.asarray(differences, dtype=np.float64))
    pairs = values.count(-1)
    made = pairs > 1
    mean = values.mean(-1).filled(math.nan)
    own = values.var(-1, ddof=1).filled(0.0)
    own = np.where(own > (4 * np.finfo(float).eps * mean) ** 2 * pairs, own, 0.0)  # rounding
    freedoms = np.where(made, pairs - 1, 0)
    total = freedoms.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = (own * freedoms).sum(-1, keepdims=True) / total
        error = np.sqrt(np.maximum(own, shared) / pairs)
        typical = np.sqrt(shared / pairs.max(-1, keepdims=True, initial=0))
        most = total / (1 + _SHARED * (np.maximum(made.sum(-1, keepdims=True), 1) - 1))
        excess = np.where(own > shared, own / shared, 1.0)
        freedom = np.maximum(most / excess, pairs - 1)
    return Estimates(mean, error, freedom, pairs.astype(np.float64), typical)


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences, positive if the method is better, with corrected limits.

    Attributes:
        mean: mean over the pairs.
        low, high: limits of a simultaneous 95 % confidence interval of the comparison.
        p_value: two-sided, corrected p-value; NaN without a test.
        pairs: number of seeds with both values.

    >>> Interval(mean=0.4, low=0.1, high=0.7, p_value=0.01, pairs=5).better
    True
    """

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    pairs: int = 0

    @property
    def better(self) -> bool:
        """Whether the method is significantly better."""
        return self.p_value < LEVEL and self.mean > 0

    @property
    def worse(self) -> bool:
        """Whether the method is significantly worse."""
        return self.p_value < LEVEL and self.mean < 0

    def within(self, margin: float) -> bool:
        """Return whether two one-sided tests show the difference to be smaller than the margin."""
        return self.low >= -margin and self.high <= margin


def endpoint_intervals(*families: ArrayLike) -> list[list[Interval]]:
    """Test several families of paired differences together, by Holm's rule, with corrected intervals.

    Args:
        families: each (tests, seeds), where higher is better and NaN is missing; the tests of a family
            have the same reference.

    Returns:
        An interval per test, for each family. It excludes zero if and only if the test is significant:
        limits are Bonferroni's; if only Holm's rule finds a difference, one of them is zero.

    >>> (found,) = endpoint_intervals([[2.0, 2.4, 2.2], [0.1, -0.2, 0.0]])
    >>> [(round(each.low, 1), round(each.high, 1), each.better) for each in found]
    [(1.6, 2.8, True), (-0.4, 0.4, False)]
    """
    tables = [np.asarray(family, dtype=np.float64) for family in families]
    found = [estimate(table) for table in tables]
    adjusted = holm(np.concatenate([each.p_values for each in found]) if found else [])
    tests = max(int(np.count_nonzero(~np.isnan(adjusted))), 1)
    parts = np.split(adjusted, np.cumsum([len(table) for table in tables])[:-1])
    return [_intervals(each, part, tests) for each, part in zip(found, parts, strict=True)]


def task_intervals(
    differences: Sequence[ArrayLike], found: Sequence[bool], tests: int
) -> list[list[Interval]]:
    """Test each task for the methods with a significant endpoint, by Holm's rule within a method.

    Args:
        differences: for each task, (methods, seeds).
        found: whether the endpoint of each method is significant.
        tests: number of tests of the endpoint, for the level of each method.

    Returns:
        For each task, an interval per method; the p-value of a method that is not found is NaN.

    >>> left, right = [[2.0, 2.4, 2.2]], [[0.1, -0.2, 0.0]]
    >>> [each[0].better for each in task_intervals([left, right], [True], tests=1)]
    [True, False]
    """
    each_task = [estimate(table) for table in differences]
    raw = np.stack([each.p_values for each in each_task], -1)  # (methods, tasks)
    adjusted = np.minimum(holm(raw) * tests, 1.0)
    adjusted = np.where(np.asarray(found, dtype=bool)[:, None], adjusted, math.nan)
    return [
        _intervals(each, adjusted[:, index], tests * len(each_task))
        for index, each in enumerate(each_task)
    ]


def _intervals(found: Estimates, adjusted: Floats, tests: int) -> list[Interval]:
    known = (found.pairs > 1) & (
        (found.error > 0) | (found.mean == 0)
    )  # without a spread, there are no limits
    reach = np.where(known, found.reach(tests), math.nan)
    made = []
    for mean, limit, p_value, pairs in zip(found.mean, reach, adjusted, found.pairs, strict=True):
        low, high = float(mean - limit), float(mean + limit)
        if p_value < LEVEL:  # Holm's rule finds more than Bonferroni's
            low, high = (max(low, 0.0), high) if mean > 0 else (low, min(high, 0.0))
        made.append(Interval(float(mean), low, high, float(p_value), int(pairs)))
    return made


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of methods; 1 is best.

    Attributes:
        labels: methods without missing values, best rank first.
        ranks: mean ranks.
        p_value: p-value of the null hypothesis that methods are exchangeable within blocks; NaN for
            fewer than two methods.
        critical: 95 % quantile of the largest difference of mean ranks under this hypothesis.

    >>> ranking = rank_methods(["a", "b"], [[[3.0], [4.0]], [[2.0], [1.0]]])  # two methods, two seeds
    >>> ranking.labels, ranking.ranks
    (['a', 'b'], [1.0, 2.0])
    """

    labels: list[str]
    ranks: list[float]
    p_value: float
    critical: float


def rank_methods(labels: Sequence[str], gains: ArrayLike) -> Ranking:
    """Rank methods on every task of every block, and test the mean ranks by permutation within blocks.

    Tasks of one run are dependent, so the ranks of a method in a block are permuted together. Blocks are
    seeds or data sets.

    Args:
        labels: labels of the methods.
        gains: (methods, blocks, tasks), where higher is better; methods with a NaN are left out.

    >>> rank_methods(["a", "b"], [[[3.0, 1.0]], [[2.0, 0.5]]]).ranks
    [1.0, 2.0]
    """
    from scipy.stats import rankdata

    table = np.asarray(gains, dtype=np.float64)
    kept = np.flatnonzero(~np.isnan(table).reshape(len(labels), -1).any(1))
    if len(kept) < 2 or table[0].size == 0:
        return Ranking([], [], math.nan, math.nan)
    blocks = rankdata(-table[kept], axis=0).mean(-1)  # (methods, blocks)
    means = blocks.mean(1)
    draws = (
        np.random.default_rng(0)
        .permuted(np.broadcast_to(blocks, (_PERMUTATIONS, *blocks.shape)), axis=1)
        .mean(-1)
    )  # (permutations, methods)
    p_value = (1 + np.count_nonzero(draws.var(1) >= means.var() - 1e-12)) / (1 + _PERMUTATIONS)
    critical = float(np.quantile(np.ptp(draws, axis=1), 1 - LEVEL))
    order = np.argsort(means, kind="stable")
    return Ranking(
        [labels[kept[place]] for place in order], means[order].tolist(), float(p_value), critical
    )
