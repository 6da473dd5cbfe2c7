"""Tools that the solvers share: norms and cosines, a root of a matrix, non-negative least squares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)


def nonzero(values: Matrix) -> Matrix:
    """Return the values with ones in place of zeros, as a safe denominator."""
    return np.where(values == 0, 1.0, values)


def norms_and_cosines(gram: Matrix) -> tuple[Matrix, Matrix]:
    """Return (K,) norms of the gradients and their (K, K) cosines, which are zero for zero gradients."""
    norms = np.sqrt(gram.diagonal())
    safe = nonzero(norms)
    return norms, gram / safe[:, None] / safe


def matrix_root(matrix: Matrix) -> Matrix:
    """Return a root R of a positive semidefinite matrix, ``R'R = matrix``.

    It is made from eigenvalues, because a singular matrix may have no Cholesky factor after rounding.
    """
    values, vectors = np.linalg.eigh(matrix)
    root: Matrix = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return root * (matrix.diagonal() > 0)


def nonnegative_least_squares(system: Matrix, target: Matrix) -> tuple[Matrix, float]:
    """Minimize ``|system x - target|`` over x >= 0 (Lawson and Hanson); return x and the norm."""
    from scipy.optimize import nnls  # loaded with the method, see load_solvers

    solution, length = nnls(system, target, maxiter=30 * system.shape[1])
    return solution, float(length)


def project_onto_simplex(point: Matrix) -> Matrix:
    """Return the nearest vector with non-negative entries that sum to one.

    It is ``max(point - shift, 0)`` for one shift. If the m largest entries stay positive, the shift is
    their mean excess; m is the largest number for which the smallest of them does stay positive (Held,
    Wolfe and Crowder 1974).

    >>> import numpy as np
    >>> project_onto_simplex(np.array([0.9, 0.5])).round(4).tolist()
    [0.7, 0.3]
    """
    descending = np.sort(point)[::-1]
    shifts = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    positive = np.count_nonzero(descending > shifts)
    projected: Matrix = np.maximum(point - shifts[positive - 1], 0)
    return projected
