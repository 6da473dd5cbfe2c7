"""The shortest vector in a convex hull."""

import numpy as np

from mtlkit.weighting._solvers.geometry import (
    Matrix,
    matrix_root,
    nonnegative_least_squares,
    norms_and_cosines,
)


def min_norm_point(gram: Matrix) -> Matrix:
    """Return convex weights of the shortest vector in the convex hull of the gradients (MGDA).

    If some gradients are zero, these share the weights equally.

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> min_norm_point(gram).round(4).tolist()
    [0.4, 0.6]
    """
    norms, cosines = norms_and_cosines(gram)
    return min_norm_of_columns(matrix_root(cosines) * norms)


def is_stationary(cosines: Matrix, rounding: float) -> bool:
    """Return whether a convex combination of the unit gradients vanishes, up to ``rounding``."""
    columns = matrix_root(cosines)
    shortest = columns @ min_norm_of_columns(columns)
    return bool(shortest @ shortest <= len(cosines) * rounding)


def min_norm_of_columns(columns: Matrix) -> Matrix:
    """Return convex weights of the shortest vector in the convex hull of the columns.

    It is the solution of non-negative least squares ``[A; 1] x = [0; 1]``, divided by its sum: for a
    given direction w of x, the least of ``s^2 |Aw|^2 + (s - 1)^2`` over s grows with ``|Aw|``. Lawson
    and Hanson's method ends after finitely many exchanges, so the result is exact to rounding.
    """
    lengths = np.linalg.norm(columns, axis=0)
    shortest = lengths.min()
    if shortest > 0:
        # columns of unit length, so that their order of entering does not depend on their norms
        system = np.vstack([columns, np.full(columns.shape[1], shortest)]) / lengths
        target = np.append(np.zeros(len(columns)), 1)
        solution = nonnegative_least_squares(system, target)[0] / lengths
    else:
        solution = np.where(lengths == 0, 1.0, 0.0)
    weights: Matrix = solution / solution.sum()
    return weights
