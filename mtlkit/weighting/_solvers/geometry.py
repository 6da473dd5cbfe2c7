"""What the solvers share: norms and cosines, a root of a matrix, non-negative least squares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)


def nonzero(values: Matrix) -> Matrix:
    """The values, with ones in place of zeros: a safe denominator."""
    return np.where(values == 0, 1.0, values)


def norms_and_cosines(gram: Matrix) -> tuple[Matrix, Matrix]:
    """(K,) norms of the gradients and their (K, K) cosines, which are zero for zero gradients."""
    norms = np.sqrt(gram.diagonal())
    safe = nonzero(norms)
    return norms, gram / safe[:, None] / safe


def matrix_root(matrix: Matrix) -> Matrix:
    """A root R of a positive semidefinite matrix, ``R'R = matrix``: vectors with these inner products.

    By eigenvalues, because rounding may deny a singular matrix its Cholesky factor.
    """
    values, vectors = np.linalg.eigh(matrix)
    root: Matrix = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return root * (matrix.diagonal() > 0)


def nonnegative_least_squares(system: Matrix, target: Matrix) -> tuple[Matrix, float]:
    """The x >= 0 for which ``|system x - target|`` is least, by Lawson and Hanson; and that length."""
    from scipy.optimize import nnls  # here, because SciPy would double the time of `import mtlkit`

    solution, length = nnls(system, target, maxiter=30 * system.shape[1])
    return solution, float(length)
