"""Statistics of a measured run, which the rules read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlkit.diagnosis.groups import Grouping, find_groups
from mtlkit.diagnosis.measure import Array, Measurement

Pair = tuple[int, int]

ENOUGH_STEPS = 20
"""Fewer steps do not tell a trend from chance."""
_LEVEL = 0.01
"""Chance that a run of unrelated tasks has any conflict that counts."""
ENOUGH_SAMPLES = 50
"""Pairs with fewer labels than this in common, over the whole run, are not judged."""


class Summary:
    """Statistics of a run; arrays are over S steps and K tasks, NaN where nothing is known."""

    def __init__(self, measured: Measurement) -> None:
        self.measured = measured
        self.tasks = measured.tasks
        self.wrt = measured.wrt
        self.steps = len(measured.losses)
        self.losses, self.norms, self.cosines = measured.losses, measured.norms, measured.cosines.copy()
        if self.wrt == "features":  # without a common sample, feature gradients never overlap
            for i, j in self.apart:
                self.cosines[:, i, j] = self.cosines[:, j, i] = np.nan

    @cached_property
    def typical_norms(self) -> Array:
        """(K,) medians over the steps of the gradient norms; 0 for tasks without any gradient."""
        found = _over_steps(np.median, self.norms)
        found[self.unreached] = 0.0
        return found

    @cached_property
    def norm_ratio(self) -> float:
        """Largest typical norm over the smallest that is not zero."""
        return _ratio(self.typical_norms)

    @cached_property
    def loss_ratio(self) -> float:
        """Largest typical loss over the smallest that is not zero."""
        return _ratio(np.abs(_over_steps(np.median, self.losses)))

    @cached_property
    def norm_drift(self) -> tuple[Pair, float, float] | None:
        """The pair of tasks whose ratio of norms changes most, with its first and its last ratio."""
        first, last = (_over_steps(np.median, part) for part in self._ends(self.norms))
        with np.errstate(divide="ignore", invalid="ignore"):
            before, after = first[:, None] / first, last[:, None] / last
            change = np.abs(np.log(after / before))
        known = [pair for pair in self.pairs if np.isfinite(change[pair])]
        if not known:
            return None
        i, j = max(known, key=lambda pair: change[pair])
        pair = (i, j) if before[i, j] >= 1 else (j, i)
        return pair, float(before[pair]), float(after[pair])

    @cached_property
    def loss_change(self) -> Array:
        """(K, 2) mean loss in the first and in the last tenth of the run."""
        return np.stack([_over_steps(np.mean, part) for part in self._ends(self.losses)], axis=1)

    @cached_property
    def loss_rise(self) -> Array:
        """(K,) rise of the mean loss from the first to the last quarter, in standard errors."""
        quarter = max(2, self.steps // 4)
        ends = (self.losses[:quarter], self.losses[-quarter:])
        first, last = (_over_steps(np.mean, part) for part in ends)
        errors = [_over_steps(_squared_error, part) for part in ends]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((last - first) / np.sqrt(errors[0] + errors[1]))

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of tasks."""
        return list(itertools.combinations(range(len(self.tasks)), 2))

    @cached_property
    def judged(self) -> list[Pair]:
        """Pairs with enough steps and labels in common to say anything about them."""
        steps, samples = np.isfinite(self.cosines).sum(axis=0), self.measured.shared_samples
        labels = samples.diagonal()
        common = samples if self.wrt == "features" else np.minimum(labels[:, None], labels)
        enough = (steps >= ENOUGH_STEPS) & (common >= ENOUGH_SAMPLES)
        return [pair for pair in self.pairs if enough[pair]]

    @cached_property
    def cosine(self) -> Array:
        """(K, K) mean cosines: what a step along task j adds to task i at equal gradient norms."""
        return _over_steps(np.mean, self.cosines)

    @cached_property
    def cosine_error(self) -> Array:
        """(K, K) standard errors of the mean cosines."""
        return np.sqrt(_over_steps(_squared_error, self.cosines))

    @cached_property
    def beyond_chance(self) -> float:
        """How many standard errors a mean must differ from 0, corrected for the number of pairs."""
        return NormalDist().inv_cdf(1 - _LEVEL / max(len(self.judged), 1))

    @cached_property
    def conflict_share(self) -> Array:
        """(K, K) share of the steps in which the gradients of a pair have a negative cosine."""
        known = np.isfinite(self.cosines)
        share = _divide((known & (self.cosines < 0)).sum(axis=0), known.sum(axis=0))
        np.fill_diagonal(share, np.nan)
        return share

    @cached_property
    def help(self) -> Array:
        """(K,) sum of the mean cosines with all other tasks.

        With gradients of equal norm, 0.3 means that the other tasks add 30 % to the decrease of a task's
        loss by its own gradient, to first order, and -1 that they undo it. It depends on no loss scale.
        """
        others = ~np.eye(len(self.tasks), dtype=bool) & np.isfinite(self.cosine)
        sums = np.where(others, self.cosine, 0.0).sum(axis=1)
        return np.where(others.any(axis=1), sums, np.nan)

    @cached_property
    def help_error(self) -> Array:
        """(K,) standard errors of :attr:`help`."""
        off_diagonal = self.cosine_error * ~np.eye(len(self.tasks), dtype=bool)
        return np.sqrt(np.nansum(off_diagonal**2, axis=1))

    @cached_property
    def similarity(self) -> Array:
        """(K, K) similarity of the gradients over the samples, up to rotations, from 0 to 1.

        It is the root of the mean alignment over the steps, and so on the scale of a correlation.
        """
        found = np.sqrt(np.maximum(_over_steps(np.mean, self.measured.similarity), 0.0))
        enough = set(self.judged)
        for i, j in self.pairs:
            if (i, j) not in enough:
                found[i, j] = found[j, i] = np.nan
        return found

    @cached_property
    def grouping(self) -> Grouping:
        """Groups of tasks that are similar among themselves; all together without evidence for more."""
        return find_groups(self.similarity)

    @cached_property
    def labeled_samples(self) -> list[int]:
        """Number of labeled samples of each task."""
        return [int(count) for count in self.measured.shared_samples.diagonal()]

    @cached_property
    def unreached(self) -> list[int]:
        """Tasks with labels whose loss has no gradient, in any step, where tasks share.

        At the parameters, a step with the labels of one task alone shows nothing: without a fork, no
        parameter counts as shared in it.
        """
        labeled = np.isfinite(self.losses)
        if self.wrt == "parameters":
            labeled &= labeled.sum(axis=1, keepdims=True) > 1
        reached = np.nansum(self.norms, axis=0) > 0
        if self.measured.not_finite >= self.steps:
            return []
        return np.flatnonzero(labeled.any(axis=0) & ~reached).tolist()

    @cached_property
    def apart(self) -> list[Pair]:
        """Pairs of labeled tasks that never share a sample."""
        shared = self.measured.shared_samples
        return [(i, j) for i, j in self.pairs if shared[i, i] and shared[j, j] and not shared[i, j]]

    @cached_property
    def dead_share(self) -> float:
        """Share of the features that never changed in the last quarter of the run."""
        return self.measured.dead_features / max(self.measured.features, 1)

    def _ends(self, values: Array) -> tuple[Array, Array]:
        tenth = max(1, self.steps // 10)
        return values[:tenth], values[-tenth:]


def _over_steps(reduce: Callable[..., Any], values: Array) -> Array:
    """Reduce each column over its finite steps; NaN without any."""
    flat = values.reshape(len(values), -1)
    columns = [column[np.isfinite(column)] for column in flat.T]
    found = [float(reduce(column)) if len(column) else np.nan for column in columns]
    return np.array(found).reshape(values.shape[1:])


def _squared_error(values: Array) -> float:
    """Return the square of the standard error of a mean; NaN for one value."""
    return float(np.var(values, ddof=1) / len(values)) if len(values) > 1 else np.nan


def _ratio(values: Array) -> float:
    known = values[np.isfinite(values) & (values > 0)]
    return float(known.max() / known.min()) if len(known) else 1.0


def _divide(count: NDArray[Any], of: NDArray[Any]) -> Array:
    return np.where(of > 0, count / np.maximum(of, 1), np.nan)
