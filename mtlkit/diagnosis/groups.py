"""Groups of tasks: clusters of similar tasks, or all together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]

LEAST_WITHIN = 0.25
"""Minimum of the mean similarity within groups, for any number of tasks."""
LEAST_TESTED = 0.2
"""Minimum of the mean similarity within groups that permuted pairs do not reach."""
MOST_BETWEEN = 0.5
"""Maximum of the mean similarity between groups, as a fraction of that within groups."""
LEAST_GROUPED = 2 / 3
"""Minimum fraction of the tasks that are in a group of two or more."""
_KNOWN = 0.8
_PERMUTATIONS = 200


@dataclass(frozen=True)
class Grouping:
    """Tasks by group, in task order.

    Attributes:
        groups: the groups; a single one without evidence for more.
        within: mean similarity of pairs within groups at the best cut, or NaN.
        between: mean similarity of pairs between groups at the best cut, or NaN.
    """

    groups: list[list[int]]
    within: float = np.nan
    between: float = np.nan


def find_groups(similarity: Array) -> Grouping:
    """Group tasks by a (K, K) similarity from 0 to 1, or keep all together.

    The tree of average linkage is cut where the mean similarity within groups exceeds that between them
    most. The cut is accepted if at least two groups have two tasks or more, these contain two thirds of
    the tasks, the similarity within groups is at least 0.25, and that between them at most half of it. A
    similarity of 0.2 is enough if the cut is better than 99% of those with the pairs permuted. So
    neither one similar pair nor unrelated tasks are groups. ``benchmarks/grouping`` measures how often
    this finds planted groups, and finds none in tasks without structure.

    >>> import numpy as np
    >>> similarity = np.kron(np.eye(2), np.ones((3, 3)))  # two groups of three tasks
    >>> find_groups(similarity).groups
    [[0, 1, 2], [3, 4, 5]]
    >>> find_groups(np.ones((4, 4))).groups
    [[0, 1, 2, 3]]
    """
    count = len(similarity)
    together = Grouping([list(range(count))] if count else [])
    rows, columns = np.triu_indices(count, 1)
    values = similarity[rows, columns]
    known = np.isfinite(values)
    if count < 4 or known.mean() < _KNOWN:
        return together
    values = np.where(known, values, values[known].mean())
    labels, score = best_cut(values, rows, columns, count)
    same = labels[rows] == labels[columns]
    within, between = float(values[same].mean()), float(values[~same].mean())
    groups = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
    sizes = [len(group) for group in groups if len(group) > 1]
    separated = within >= LEAST_TESTED and between <= MOST_BETWEEN * within
    if not separated or len(sizes) < 2 or sum(sizes) < LEAST_GROUPED * count:
        return Grouping(together.groups, within, between)
    if within < LEAST_WITHIN:
        order = np.random.default_rng(0)
        drawn = (order.permutation(np.sort(values)) for _ in range(_PERMUTATIONS))
        as_good = sum(best_cut(each, rows, columns, count)[1] >= score for each in drawn)
        if as_good > 0.01 * _PERMUTATIONS:
            return Grouping(together.groups, within, between)
    return Grouping(sorted(groups), within, between)


def best_cut(values: Array, rows: Places, columns: Places, count: int) -> tuple[Places, float]:
    """Return the group of each task at the cut with the most significant difference, and its score."""
    from scipy.cluster.hierarchy import average, cut_tree

    best, best_score = np.arange(count), -np.inf
    cuts = cut_tree(average(values.max() - values)).T[1:-1]  # neither single tasks nor all together
    for labels in cuts:
        same = labels[rows] == labels[columns]
        gap = values[same].mean() - values[~same].mean()
        score = gap * np.sqrt(same.sum() * (~same).sum())
        if score > best_score:
            best, best_score = labels, float(score)
    return best, best_score
