"""What a comparison of several methods over several seeds can claim, and what it cannot.

One test per method and metric finds a winner by chance soon enough: with 40 tests at 0.05, two. Holm's
correction keeps the chance of any false winner at the level. An interval says how large a difference may
be, the power of a test how many seeds would show it, and ranks compare methods over tasks whose metrics
have nothing in common.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mtlkit.errors import SpecError
from mtlkit.report.statistics import Floats

MOST_SEEDS = 1000


def holm(p_values: Sequence[float]) -> list[float]:
    r"""P-values after Holm's step-down correction (1979).

    The k-th smallest of m is multiplied by :math:`m - k + 1`; none falls below one before it.
    The chance that any true null hypothesis has an adjusted value below 0.05 is 0.05 at most, however
    the tests depend on each other. NaN is a test that was not made: it stays NaN and does not count.
    """
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(values.shape, math.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Difference:
    """Mean of the differences of paired values, positive where the method is better.

    Attributes:
        mean: over the pairs.
        low, high: limits of the confidence interval of the mean; NaN for one pair.
        std: sample deviation of the differences.
        pairs: number of pairs with two finite values.
    """

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    std: float = math.nan
    pairs: int = 0


def paired_difference(
    method: ArrayLike, reference: ArrayLike, higher_is_better: bool = True, level: float = 0.95
) -> Difference:
    """How much better the method is on the same seeds, with Student's interval of the mean."""
    from scipy.special import stdtrit

    first, second = (np.asarray(values, dtype=np.float64) for values in (method, reference))
    if first.shape != second.shape or first.ndim != 1:
        raise SpecError(
            f"paired values must be two lists of one length, not {first.shape}, {second.shape}"
        )
    gains = (first - second)[np.isfinite(first) & np.isfinite(second)]
    gains = gains if higher_is_better else -gains
    count = int(gains.size)
    if count < 2:
        return Difference(float(gains[0]), pairs=1) if count else Difference()
    mean, std = float(gains.mean()), float(gains.std(ddof=1))
    reach = float(stdtrit(count - 1, 0.5 + level / 2)) * std / math.sqrt(count)
    return Difference(mean, mean - reach, mean + reach, std, count)


def seeds_needed(effect: float, level: float = 0.05, power: float = 0.8) -> int | None:
    """Seeds with which a one-sided paired t-test finds this effect with this chance.

    Args:
        effect: mean of the paired differences in units of their standard deviation.
        level: of the test; divide it by the number of tests where several are made.
        power: chance to find the effect.

    Returns:
        The smallest such number from 2; None where 1000 are too few, or the effect is not positive.
    """
    from scipy.special import nctdtr, stdtrit

    if math.isnan(effect) or effect <= 0:
        return None
    if math.isinf(effect):
        return 2

    def chance(seeds: int) -> float:
        missed = float(nctdtr(seeds - 1, effect * math.sqrt(seeds), stdtrit(seeds - 1, 1 - level)))
        # far beyond the limit scipy's tail is NaN, where the chance is 1
        return 1.0 if math.isnan(missed) else 1 - missed

    seeds = 2 + bisect_left(range(2, MOST_SEEDS + 1), power, key=chance)
    return seeds if seeds <= MOST_SEEDS else None


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of methods over tasks; 1 is best.

    Attributes:
        labels: the methods that have a value on every task, best rank first.
        ranks: their mean ranks.
        tasks: number of tasks.
        p_value: of Friedman's test that all methods are alike; NaN for fewer than three.
        critical: Nemenyi's critical difference at 0.05: mean ranks closer than this are not told apart.
        groups: spans of places in ``labels`` whose ends are closer than that; only the widest.
    """

    labels: list[str]
    ranks: list[float]
    tasks: int
    p_value: float
    critical: float
    groups: list[tuple[int, int]]


def rank_methods(labels: Sequence[str], gains: ArrayLike) -> Ranking:
    """Rank methods on every task, and test whether their mean ranks differ (Demšar, 2006).

    Args:
        labels: the methods.
        gains: (methods, tasks), higher is better; a method with a NaN is left out.
    """
    from scipy.stats import friedmanchisquare, rankdata

    table = np.asarray(gains, dtype=np.float64).reshape(len(labels), -1 if len(labels) else 0)
    kept = np.flatnonzero(~np.isnan(table).any(1))
    table, tasks = table[kept], table.shape[1]
    if len(kept) < 2 or tasks == 0:
        return Ranking([], [], tasks, math.nan, math.nan, [])
    means = rankdata(-table, axis=0).mean(1)
    order = np.argsort(means, kind="stable")
    ranks = [float(means[place]) for place in order]
    p_value = math.nan
    if len(kept) > 2 and tasks > 1:
        with np.errstate(invalid="ignore"):  # all alike
            p_value = float(friedmanchisquare(*table).pvalue)
    critical = critical_difference(len(kept), tasks)
    chosen = [labels[kept[place]] for place in order]
    return Ranking(chosen, ranks, tasks, p_value, critical, _groups(ranks, critical))


def critical_difference(methods: int, tasks: int, level: float = 0.05) -> float:
    r"""Nemenyi's critical difference of mean ranks.

    .. math:: q_\alpha \sqrt{\frac{k (k + 1)}{6 N}}

    for k methods and N tasks, with the studentized range's quantile :math:`q_\alpha` divided by
    :math:`\sqrt 2`.
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * tasks))


def _groups(ranks: Floats | Sequence[float], critical: float) -> list[tuple[int, int]]:
    """Spans of sorted ranks that are closer than the critical difference, none within another."""
    spans: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(place for place, other in enumerate(ranks) if other - rank <= critical)
        if last > first and (not spans or last > spans[-1][1]):
            spans.append((first, last))
    return spans
