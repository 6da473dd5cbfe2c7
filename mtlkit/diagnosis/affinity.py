r"""How much of a task's loss decrease the other tasks bring or cost, from inner products of gradients.

A small step along the gradient :math:`g_j` lowers the loss of task i by :math:`\eta\, g_i \cdot g_j`,
and a step along its own gradient by :math:`\eta\, g_i \cdot g_i`. All functions take arrays over S
steps and K tasks, with NaN where a task was absent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GROUP_COSINE = 0.1
"""Tasks are in one group where their gradients agree at least this much on average."""


def inner_products(norms: Array, cosines: Array) -> Array:
    """(S, K, K) inner products from (S, K) norms and (S, K, K) cosines."""
    return cosines * norms[:, :, None] * norms[:, None, :]


def affinity(gram: Array) -> Array:
    """(K, K): the decrease of task i's loss by steps along task j, over that by steps along i itself.

    1 on the diagonal; 0.3 means that j brings 30 % of what i brings itself, -1 that j undoes all of it.
    Decreases are added up over the steps in which both are present, so that it is the share in the
    decrease of the whole run. NaN for pairs that never meet, and where task i has no gradient.
    """
    own = np.diagonal(gram, axis1=1, axis2=2)[:, :, None]  # (S, K, 1)
    together = np.isfinite(gram)
    brought = np.where(together, gram, 0.0).sum(axis=0)
    itself = np.where(together, own, 0.0).sum(axis=0)
    return np.where(itself > 0, brought / np.where(itself > 0, itself, 1.0), np.nan)


def effect_of_others(gram: Array) -> Array:
    """(K,): the decrease of each task's loss by all others together, over its own.

    Below -1 the others raise the loss faster than the task itself lowers it.
    """
    table = affinity(gram)
    others = ~np.eye(len(table), dtype=bool) & np.isfinite(table)
    sums = np.where(others, table, 0.0).sum(axis=1)
    return np.where(others.any(axis=1), sums, np.nan)


def conflicts(cosines: Array) -> tuple[Array, Array]:
    """(K, K) share of the steps in which two tasks conflict, and how the conflicts persist.

    The persistence is the share of the conflicting steps that another conflict of the pair follows:
    about the share itself where conflicts come by chance. NaN for pairs without any step, or any
    conflict.
    """
    known = np.isfinite(cosines)
    conflict = known & (cosines < 0)
    share = _divide(conflict.sum(axis=0), known.sum(axis=0))
    before, after = conflict[:-1], known[1:]
    lasting = _divide((before & conflict[1:]).sum(axis=0), (before & after).sum(axis=0))
    for table in (share, lasting):
        np.fill_diagonal(table, np.nan)
    return share, lasting


def tree(table: Array) -> Array | None:
    """Average-linkage tree over tasks from a (K, K) affinity; None for fewer than two tasks.

    The two affinities of a pair depend on the size of the gradients, their geometric mean does not: it
    is the cosine of the pair over the run. The distance is one minus it; unknown pairs count as
    orthogonal.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if len(table) < 2:
        return None
    distance = 1 - np.nan_to_num(agreement(table))
    np.fill_diagonal(distance, 0.0)
    found: Array = linkage(squareform(distance, checks=False), method="average")
    return found


def agreement(table: Array) -> Array:
    """(K, K) geometric mean of the two affinities of a pair, with their sign: from -1 to 1."""
    product = np.clip(table * table.T, 0.0, 1.0)
    return np.asarray(np.sign(table) * np.sqrt(product))


def group_tasks(table: Array) -> list[list[int]]:
    """Groups of tasks that agree by :data:`GROUP_COSINE` or more on average, in task order."""
    from scipy.cluster.hierarchy import fcluster

    links = tree(table)
    if links is None:
        return [[task] for task in range(len(table))]
    labels = fcluster(links, t=1 - GROUP_COSINE, criterion="distance")
    groups: dict[int, list[int]] = {}
    for task, label in enumerate(labels):
        groups.setdefault(int(label), []).append(task)
    return sorted(groups.values())


def _divide(count: NDArray[Any], of: NDArray[Any]) -> Array:
    return np.where(of > 0, count / np.maximum(of, 1), np.nan)
