"""What the rules read: figures over a whole run, derived from a measurement."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from mtlkit.diagnosis import affinity
from mtlkit.diagnosis.measure import Array, Measurement

Pair = tuple[int, int]


class Figures:
    """Figures of a run; arrays are over S steps and K tasks, NaN where there is nothing to know."""

    def __init__(self, measured: Measurement) -> None:
        self.measured = measured
        self.tasks = measured.tasks
        self.wrt = measured.wrt
        self.steps = len(measured.losses)
        self.losses, self.norms, self.cosines = measured.losses, measured.norms, measured.cosines.copy()
        if self.wrt == "features":  # there, tasks of different samples are orthogonal whatever they want
            for i, j in self.apart:
                self.cosines[:, i, j] = self.cosines[:, j, i] = np.nan

    # Sizes

    @cached_property
    def typical_norms(self) -> Array:
        """(K,) medians over the steps of the gradients' norms; 0 for tasks that reach nothing."""
        found = _over_steps(np.median, self.norms)
        found[self.unreached] = 0.0
        return found

    @cached_property
    def typical_losses(self) -> Array:
        """(K,) medians over the steps of the losses."""
        return _over_steps(np.median, self.losses)

    @cached_property
    def norm_ratio(self) -> float:
        """Largest typical norm over the smallest that is not zero."""
        return _ratio(self.typical_norms)

    @cached_property
    def loss_ratio(self) -> float:
        """Largest typical loss over the smallest that is not zero."""
        return _ratio(np.abs(self.typical_losses))

    @cached_property
    def norm_drift(self) -> tuple[Pair, float, float] | None:
        """The pair of tasks whose ratio of norms changes most, and that ratio at first and at last."""
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
        """(K,) rise of the mean loss from the first to the last quarter, in its standard errors."""
        quarter = max(2, self.steps // 4)
        ends = (self.losses[:quarter], self.losses[-quarter:])
        first, last = (_over_steps(np.mean, part) for part in ends)
        errors = [_over_steps(_squared_error, part) for part in ends]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((last - first) / np.sqrt(errors[0] + errors[1]))

    # Directions

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of tasks."""
        return list(itertools.combinations(range(len(self.tasks)), 2))

    @cached_property
    def cosine(self) -> Array:
        """(K, K) mean cosines."""
        return _over_steps(np.mean, self.cosines)

    @cached_property
    def conflict_share(self) -> Array:
        """(K, K) share of the steps in which a pair conflicts."""
        return affinity.conflicts(self.cosines)[0]

    @cached_property
    def persistence(self) -> Array:
        """(K, K) share of a pair's conflicts that another one follows in the next step."""
        return affinity.conflicts(self.cosines)[1]

    @cached_property
    def affinity(self) -> Array:
        """(K, K) what task j adds to the decrease of task i's loss, over what i adds itself."""
        return affinity.affinity(affinity.inner_products(self.norms, self.cosines))

    @cached_property
    def effect(self) -> Array:
        """(K,) what all others add to the decrease of a task's loss, over what it adds itself."""
        return affinity.effect_of_others(affinity.inner_products(self.norms, self.cosines))

    @cached_property
    def effect_at_equal_norms(self) -> Array:
        """(K,) the same if all gradients had one norm: what directions alone bring or cost."""
        return affinity.effect_of_others(self.cosines)

    @cached_property
    def groups(self) -> list[list[int]]:
        """Groups of tasks that agree."""
        return affinity.group_tasks(self.affinity)

    @cached_property
    def agreement_within_and_between(self) -> tuple[float, float]:
        """Mean agreement of pairs of one group, and of pairs of different groups; NaN without any."""
        place = {task: number for number, group in enumerate(self.groups) for task in group}
        table = affinity.agreement(self.affinity)
        same = [table[i, j] for i, j in self.pairs if place[i] == place[j]]
        other = [table[i, j] for i, j in self.pairs if place[i] != place[j]]
        return _mean(same), _mean(other)

    # Reach

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


def _over_steps(reduce: Callable[..., Array], values: Array) -> Array:
    """A figure over the steps of each column, without the steps that are NaN; NaN if all are."""
    flat = values.reshape(len(values), -1)
    columns = [column[np.isfinite(column)] for column in flat.T]
    found = [float(reduce(column)) if len(column) else np.nan for column in columns]
    return np.array(found).reshape(values.shape[1:])


def _squared_error(values: Array) -> Any:
    """Square of the standard error of a mean; one value does not tell."""
    return np.var(values, ddof=1) / len(values) if len(values) > 1 else np.nan


def _ratio(values: Array) -> float:
    known = values[np.isfinite(values) & (values > 0)]
    return float(known.max() / known.min()) if len(known) else 1.0


def _mean(values: list[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
