"""Pareto fronts and their hypervolumes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlkit.errors import SpecError
from mtlkit.report.statistics import Floats

_EXACT = 4
_DRAWS = 100_000


def pareto_front(points: ArrayLike) -> NDArray[np.bool_]:
    """Return which points (N, K) no other dominates, where higher is better; of equals, only the first.

    A point with a NaN is never on the front.

    >>> pareto_front([[1, 3], [2, 2], [1, 2]])
    array([ True,  True, False])
    """
    table = np.asarray(points, dtype=np.float64)
    kept = np.zeros(len(table), dtype=bool)
    for index, point in enumerate(table):
        if np.isnan(point).any():
            continue
        as_good = (table >= point).all(1)
        better = as_good & (table > point).any(1)
        earlier = as_good[:index] & (table[:index] == point).all(1)
        kept[index] = not better.any() and not earlier.any()
    return kept


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume between points (N, K) and reference (K,), where higher is better on every axis.

    Up to four axes it is exact, by the algorithm of While, Bradstreet and Barone (2012): a point adds
    the part of its box that later points do not dominate. With more axes that would take minutes; the
    volume is then estimated as by Karp and Luby (1983), with a fixed seed and an error of about 0.1%.
    Points that are not above the reference on every axis, or NaN, add nothing.

    >>> hypervolume([[1, 3], [2, 2], [3, 1]], reference=[0, 0])
    6.0
    """
    corner = np.asarray(reference, dtype=np.float64)
    table = np.asarray(points, dtype=np.float64).reshape(-1, corner.size)
    if corner.ndim != 1 or not np.isfinite(corner).all():
        raise SpecError(
            f"the reference of a hypervolume must be one finite number per task, not {corner}"
        )
    if np.isinf(table).any():
        raise SpecError("the hypervolume of a point at infinity is infinite; leave it out")
    with np.errstate(invalid="ignore"):
        boxes = (table - corner)[(table > corner).all(1)]
    return _volume(boxes) if corner.size <= _EXACT else _estimate(boxes[pareto_front(boxes)])


def _volume(boxes: Floats) -> float:
    boxes = boxes[pareto_front(boxes)]
    # sorted by the last axis, so that the sets shrink quickly
    boxes = boxes[np.argsort(-boxes[:, -1], kind="stable")]
    return float(
        sum(box.prod() - _volume(np.minimum(boxes[index + 1 :], box)) for index, box in enumerate(boxes))
    )


def _estimate(boxes: Floats) -> float:
    """Estimate the volume of a union of boxes from random points in the boxes."""
    if len(boxes) == 0:
        return 0.0
    volumes = boxes.prod(1)
    random = np.random.default_rng(0)
    chosen = random.choice(len(boxes), _DRAWS, p=volumes / volumes.sum())
    drawn = random.random((_DRAWS, boxes.shape[1])) * boxes[chosen]
    holders = sum((drawn <= box).all(1).astype(np.int64) for box in boxes)
    return float(volumes.sum() * (1 / holders).mean())
