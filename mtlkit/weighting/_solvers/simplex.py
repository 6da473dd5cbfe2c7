"""Projection onto the simplex."""

import numpy as np

from mtlkit.weighting._solvers.geometry import Matrix


def project_onto_simplex(point: Matrix) -> Matrix:
    """The nearest vector with non-negative entries of sum one.

    It is ``max(point - shift, 0)`` for one shift. If the m largest entries stay positive, the shift is
    their mean excess; the right m is the largest for which the smallest of them does stay positive
    (Held, Wolfe and Crowder 1974).

    >>> import numpy as np
    >>> project_onto_simplex(np.array([0.9, 0.5])).round(4).tolist()
    [0.7, 0.3]
    """
    descending = np.sort(point)[::-1]
    shifts = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    positive = np.count_nonzero(descending > shifts)
    projected: Matrix = np.maximum(point - shifts[positive - 1], 0)
    return projected
