"""The rules that are compared: each turns paired differences into two-sided p-values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import t

from mtlkit.report.significance import estimate
from mtlkit.report.statistics import Floats


def paired_t(differences: Floats) -> Floats:
    """The ordinary paired t-test, one test at a time; the sign test where nothing varies."""
    return estimate(differences[..., None, :]).p_values[..., 0]


def guarded(differences: Floats, *, all_degrees: bool = False) -> Floats:
    """The rule of :mod:`mtlkit.report.significance`: the larger of own and mean variance.

    With ``all_degrees``, tests with a variance above the mean keep its degrees of freedom.
    """
    found = estimate(differences)
    if all_degrees:
        found = replace(found, freedom=found.freedom.max(-1, keepdims=True))
    return found.p_values


def moderated_t(
    differences: Floats, *, robust: bool = False, shared: float = 0.0, guard: bool = False
) -> Floats:
    """The moderated t-test of Smyth (2004) over the tests of each comparison.

    Args:
        differences: (comparisons, tests, seeds).
        robust: winsorize the log-variances at their 10% and 90% quantiles.
        shared: squared correlation of the tests, by which prior and total degrees of freedom are lower.
        guard: never use a variance below the test's own.
    """
    seeds, tests = differences.shape[-1], differences.shape[-2]
    own_df = seeds - 1
    mean, own = differences.mean(-1), differences.var(-1, ddof=1)
    log_variances = np.log(np.maximum(own, 1e-4 * np.median(own, -1, keepdims=True) + 1e-12))
    if robust:
        low, high = np.quantile(log_variances, [0.1, 0.9], axis=-1, keepdims=True)
        log_variances = np.clip(log_variances, low, high)
    centered = log_variances - digamma(own_df / 2) + np.log(own_df / 2)
    center = centered.mean(-1, keepdims=True)
    excess = centered.var(-1, ddof=1, keepdims=True) - polygamma(1, own_df / 2) * (1 - shared)
    total_df = own_df * tests / (1 + (tests - 1) * shared)
    prior_df = np.where(excess > 0, 2 * _trigamma_inverse(np.maximum(excess, 1e-6)), 1e6)
    prior = np.exp(center + digamma(prior_df / 2) - np.log(prior_df / 2))
    if shared:
        prior_df = np.minimum(prior_df, max(total_df - own_df, 0))
    variance = (prior_df * prior + own_df * own) / (prior_df + own_df)
    variance = np.maximum(variance, own) if guard else variance
    statistic = mean / np.sqrt(variance / seeds)
    return np.asarray(2 * t.sf(np.abs(statistic), np.minimum(prior_df + own_df, total_df)))


def _trigamma_inverse(values: Floats) -> Floats:
    """Solve trigamma(y) = x by Newton's method, as in the appendix of Smyth (2004)."""
    found = 0.5 + 1 / values
    for _ in range(20):
        trigamma = polygamma(1, found)
        found = found + trigamma * (1 - trigamma / values) / polygamma(2, found)
    return np.asarray(found)


def sign_flips(differences: Floats) -> Floats:
    """Corrected p-values of the largest t over all sign flips of seeds (Westfall and Young, 1993)."""
    seeds = differences.shape[-1]
    signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=seeds - 1)], dtype=float)
    means = differences @ signs.T / seeds  # (comparisons, tests, flips)
    squares = (differences**2).mean(-1, keepdims=True)
    spread = np.maximum((squares - means**2) / (seeds - 1), 1e-9 * squares + 1e-15)
    statistics = np.abs(means) / np.sqrt(spread)
    largest = statistics.max(-2, keepdims=True)
    return np.asarray((largest >= statistics[..., :1] - 1e-9).mean(-1))
