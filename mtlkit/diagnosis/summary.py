"""The measurements of a run, and their statistics, which the rules use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtlkit.diagnosis.groups import Array, Grouping, find_groups

Pair = tuple[int, int]
Wrt = Literal["features", "parameters"]

ENOUGH_STEPS = 20
"""Minimum number of steps to detect a trend."""
_LEVEL = 0.01
"""Significance level of conflicts, for all pairs of a run together."""
ENOUGH_SAMPLES = 50
"""Minimum number of common labels of a pair, over the whole run."""


@dataclass(frozen=True)
class Measurement:
    """The losses and gradients of S steps over K tasks; NaN for a task that was absent.

    >>> import torch, mtlkit
    >>> task = mtlkit.Task.regression("a")
    >>> model = mtlkit.create_architecture("hard_sharing(backbone=mlp(4, inputs=3))", [task])
    >>> batch = (torch.ones(8, 3), {"a": torch.ones(8, 1)})
    >>> measured = mtlkit.diagnose(model, [task], [batch], 2, progress=False).summary.measured
    >>> measured.norms.shape, measured.shared_samples
    ((2, 1), array([[16]]))
    """

    tasks: tuple[str, ...]
    wrt: Wrt
    """Whether the gradients are with respect to the features or the shared parameters."""
    losses: Array
    """(S, K)"""
    norms: Array
    """(S, K) norms of the gradients."""
    cosines: Array
    """(S, K, K) cosines between them."""
    similarity: Array
    """(S, K, K) similarity of the gradients, up to rotations; NaN without a fork."""
    shared_samples: NDArray[np.int64]
    """(K, K) number of samples with labels of both tasks; on the diagonal, of one task."""
    most_together: int
    """Largest number of tasks with labels in one batch."""
    forked: bool
    """Whether the model passes its features to a method."""
    features: int
    """Number of shared features; 0 without a fork."""
    dead_features: int
    """Number of features that were constant in the last quarter of the run."""
    not_finite: int
    """Number of steps that were skipped because a loss or a gradient was not finite."""
    seconds: float
    layers: Mapping[str, Array] = field(default_factory=dict)
    """(K, K) mean cosines in each shared layer; empty if features were measured."""


class Summary:
    """Statistics of a run, over S steps and K tasks; NaN for unknown values.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.regression("a"), mtlkit.Task.regression("b")]
    >>> model = mtlkit.create_architecture("hard_sharing(backbone=mlp(4, inputs=3))", tasks)
    >>> batch = (torch.ones(8, 3), {"a": torch.ones(8, 1), "b": torch.ones(8, 1)})
    >>> summary = mtlkit.diagnose(model, tasks, [batch], 2, progress=False).summary
    >>> summary.pairs, summary.labeled_samples
    ([(0, 1)], [16, 16])
    """

    def __init__(self, measured: Measurement) -> None:
        self.measured = measured
        self.tasks = measured.tasks
        self.wrt = measured.wrt
        self.steps = len(measured.losses)
        self.losses, self.norms, self.cosines = measured.losses, measured.norms, measured.cosines.copy()
        if self.wrt == "features":  # without common samples, feature gradients never overlap
            for i, j in self.apart:
                self.cosines[:, i, j] = self.cosines[:, j, i] = np.nan

    @cached_property
    def typical_norms(self) -> Array:
        """(K,) medians of the gradient norms over the steps; 0 for tasks without a gradient."""
        found = _over_steps(np.median, self.norms)
        found[self.unreached] = 0.0
        return found

    @cached_property
    def norm_ratio(self) -> float:
        """Ratio of the largest to the smallest nonzero typical norm."""
        return _ratio(self.typical_norms)

    @cached_property
    def loss_ratio(self) -> float:
        """Ratio of the largest to the smallest nonzero typical loss."""
        return _ratio(np.abs(_over_steps(np.median, self.losses)))

    @cached_property
    def norm_drift(self) -> tuple[Pair, float, float] | None:
        """The pair of tasks whose ratio of norms changes most, with the first and last ratio."""
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
        """Pairs with enough common steps and labels for a statement."""
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
        """Standard errors by which a mean must differ from 0, corrected for the number of pairs."""
        return NormalDist().inv_cdf(1 - _LEVEL / max(len(self.judged), 1))

    @cached_property
    def conflict_share(self) -> Array:
        """(K, K) fraction of the steps in which the gradients of a pair have a negative cosine."""
        negative = np.where(np.isfinite(self.cosines), self.cosines < 0, np.nan)
        share = _over_steps(np.mean, negative)
        np.fill_diagonal(share, np.nan)
        return share

    @cached_property
    def layers(self) -> dict[str, Array]:
        """(P,) mean cosines of the pairs by shared layer, if parameters were measured."""
        places = tuple(np.array(self.pairs, dtype=int).reshape(-1, 2).T)
        found = {name: cosines[places] for name, cosines in self.measured.layers.items()}
        return {name: row for name, row in found.items() if np.isfinite(row).any()}

    @cached_property
    def help(self) -> Array:
        """(K,) sum of the mean cosines with all other tasks.

        With gradients of equal norm, 0.3 means that the other tasks add 30 % to the decrease of a task's
        loss by its own gradient, to first order, and -1 that they undo it. It is
        independent of the loss scales.
        """
        others = ~np.eye(len(self.tasks), dtype=bool) & np.isfinite(self.cosine)
        sums = np.where(others, self.cosine, 0.0).sum(axis=1)
        return np.where(others.any(axis=1), sums, np.nan)

    @cached_property
    def help_error(self) -> Array:
        """(K,) standard errors of :attr:`help`."""
        off_diagonal = self.cosine_error * ~np.eye(len(self.tasks), dtype=bool)
        error: Array = np.sqrt(np.nansum(off_diagonal**2, axis=1))
        return error

    @cached_property
    def similarity(self) -> Array:
        """(K, K) similarity of the gradients, up to rotations, from 0 to 1.

        It is the square root of the mean alignment over the steps, so it is on the scale of a
        correlation.
        """
        found = np.sqrt(np.maximum(_over_steps(np.mean, self.measured.similarity), 0.0))
        enough = set(self.judged)
        for i, j in self.pairs:
            if (i, j) not in enough:
                found[i, j] = found[j, i] = np.nan
        return found

    @cached_property
    def grouping(self) -> Grouping:
        """Groups of similar tasks; a single group without evidence for more."""
        return find_groups(self.similarity)

    @cached_property
    def labeled_samples(self) -> list[int]:
        """Number of labeled samples of each task."""
        return [int(count) for count in self.measured.shared_samples.diagonal()]

    @cached_property
    def unreached(self) -> list[int]:
        """Tasks with labels whose loss never has a gradient at the shared features or parameters.

        At the parameters, steps with labels of a single task are ignored: without a fork, no parameter
        counts as shared in them.
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
        """Pairs of labeled tasks without a common sample."""
        shared = self.measured.shared_samples
        return [(i, j) for i, j in self.pairs if shared[i, i] and shared[j, j] and not shared[i, j]]

    @cached_property
    def dead_share(self) -> float:
        """Fraction of the features that never changed in the last quarter of the run."""
        return self.measured.dead_features / max(self.measured.features, 1)

    def _ends(self, values: Array) -> tuple[Array, Array]:
        tenth = max(1, self.steps // 10)
        return values[:tenth], values[-tenth:]


def _over_steps(reduce: Callable[..., Any], values: Array) -> Array:
    """Reduce each column over its finite steps; NaN if there are none."""
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
