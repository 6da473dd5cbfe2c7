"""The vector nearest to a gradient that guarantees the other tasks some progress."""

import numpy as np

from mtlkit.weighting._solvers.geometry import (
    EPS,
    Matrix,
    matrix_root,
    nonnegative_least_squares,
    nonzero,
    norms_and_cosines,
)


def constrained_descent_weights(gram: Matrix, progress: float) -> Matrix:
    """Return weights of the d nearest to gradient 0 with ``<g_j, d> >= progress |g_j|^2`` for j >= 1.

    Lawson and Hanson's least distance programming (Solving Least Squares Problems, chapter 23): the
    shortest e with ``U'e >= f`` is read off the residual of the non-negative least squares problem
    ``[U; f'] x = [0; 1]``: its multipliers are x divided by the squared residual. A residual of zero
    proves that no vector satisfies all constraints; then the weights are those of gradient 0 alone.

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> constrained_descent_weights(gram, progress=0.0).round(4).tolist()
    [1.0, 1.0]
    """
    count = len(gram)
    norms, cosines = norms_and_cosines(gram)
    weights = np.zeros(count)
    weights[0] = 1
    # in units of the norms: the columns of U have norm one, e is the change of gradient 0
    needed = progress * norms[1:] - cosines[0, 1:] * norms[0]
    unit = np.abs(needed).max(initial=0.0)
    if unit == 0:
        return weights
    system = np.vstack([matrix_root(cosines)[:, 1:], needed / unit])
    target = np.append(np.zeros(count), 1)
    multipliers, residual = nonnegative_least_squares(system, target)
    if residual**2 <= 64 * count * EPS * (1 + multipliers.sum()):
        return weights
    weights[1:] = multipliers * unit / residual**2 / nonzero(norms[1:])
    return weights
