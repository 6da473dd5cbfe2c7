"""Projections onto the dual cone: the vectors that conflict with no gradient.

The exact projection is discontinuous where the gradients are weakly stationary: a convex combination of
some vanishes, but there is still a direction that is good for others. With (1, 0), (-1, e) and (0, -1),
the projection of (0, -1) is itself for e <= 0; for every e > 0 the cone is the origin alone, and the
projection is zero. Rounding must not decide which, so ``K * rounding`` is added to the diagonal of the
cosines. Noise of the size of ``rounding`` then moves the projection ``sum_k (z_k + x_k) u_k`` by at most
``sqrt(K * rounding) |z + x|``. The price: its product with the unit gradient j may be as low as
``-K * rounding * x_j``, which is no more than rounding where the multipliers x are moderate.
"""

import numpy as np

from mtlkit.weighting._solvers.geometry import (
    EPS,
    Matrix,
    nonnegative_least_squares,
    nonzero,
    norms_and_cosines,
)

_FEW_TASKS = 32
"""Up to this many, Lawson and Hanson's method takes no longer than block pivoting."""
_ROUNDS = 12
"""Rounds of block pivoting; it settles in a few, or cycles."""


def dual_cone_projections(gram: Matrix, rounding: float = EPS) -> Matrix:
    """Return (K, K) weights: row i gives the projection of gradient i onto the dual cone (UPGrad).

    In units of the norms this is a problem on the cosines alone. A zero gradient neither moves nor
    moves others.

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> dual_cone_projections(gram).round(4).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    norms, cosines = norms_and_cosines(gram)
    identity = np.eye(len(gram))
    corrections = dual_cone_corrections(cosines, identity, rounding)
    return identity + corrections * norms[:, None] / nonzero(norms)


def dual_cone_weights(gram: Matrix, weights: Matrix, rounding: float = EPS) -> Matrix:
    """Return weights of the projection of ``sum_k w_k g_k`` onto the dual cone (DualProj).

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> dual_cone_weights(gram, np.array([0.5, 0.5])).round(4).tolist()
    [0.5, 0.5]
    """
    norms, cosines = norms_and_cosines(gram)
    corrections = dual_cone_corrections(cosines, (weights * norms)[None], rounding)
    projected: Matrix = weights + corrections[0] / nonzero(norms)
    return projected


def dual_cone_corrections(cosines: Matrix, start: Matrix, rounding: float = EPS) -> Matrix:
    """Find, for each row z of ``start``, the x >= 0 for which ``sum_k (z_k + x_k) u_k`` is shortest.

    The u are unit vectors (or zeros) with the given inner products C. By Moreau's decomposition that
    shortest vector is the projection of ``sum_k z_k u_k`` onto the dual cone. The least of
    ``(z + x)'C(z + x) + r x'x`` with ``r = K * rounding`` is that of ``|R x - t|`` where ``R'R = C + r``
    and ``R't = -C z``: non-negative least squares with one matrix for all rows.

    >>> import numpy as np
    >>> cosines = np.array([[1.0, -0.5], [-0.5, 1.0]])
    >>> dual_cone_corrections(cosines, np.eye(2)).round(4).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    values, vectors = np.linalg.eigh(cosines)
    values = np.maximum(values, 0)
    roots = np.sqrt(values + len(cosines) * rounding)
    system = roots[:, None] * vectors.T * (cosines.diagonal() > 0)  # zero gradients correct nothing
    targets = -(start @ vectors) * (values / nonzero(roots))
    corrections: Matrix = np.zeros_like(targets)
    unsettled = np.arange(len(targets))
    if len(cosines) > _FEW_TASKS:
        corrections, unsettled = block_pivoting(system, targets)
    for row in unsettled:
        corrections[row] = nonnegative_least_squares(system, targets[row])[0]
    return corrections


def block_pivoting(system: Matrix, targets: Matrix) -> tuple[Matrix, Matrix]:
    """Minimize ``|system x - t|`` over x >= 0 for each row t of ``targets``, all at once.

    A round solves each row for the entries that it holds to be positive, and then moves all entries with
    a wrong sign at once: negative x become zero, and zeros with a negative derivative become free. That
    takes a few rounds where Lawson and Hanson's method, which moves one entry at a time, takes one per
    positive entry; but it may cycle where the matrix is nearly singular (Kim and Park, Fast nonnegative
    matrix factorization, 2011).

    Returns:
        The solutions, and the indices of the rows that have not settled, whose solutions are void.
    """
    from scipy.linalg.lapack import dposv  # loaded with the method, see load_solvers

    gram, linear = system.T @ system, -targets @ system  # derivatives at 0
    # that of SciPy's nnls for a target of length 1
    tolerance = 10 * len(gram) * EPS * np.abs(gram).sum(axis=0).max()
    tolerances = tolerance * np.linalg.norm(targets, axis=1, keepdims=True)
    x, derivatives = np.zeros_like(linear), linear.copy()
    free = np.zeros(linear.shape, dtype=bool)
    unsettled = np.arange(len(linear))
    for _ in range(_ROUNDS):
        signs = np.where(free[unsettled], x[unsettled], derivatives[unsettled] + tolerances[unsettled])
        wrong = ~(signs >= 0)  # also where a row has become NaN
        remaining = wrong.any(axis=1)
        unsettled, wrong = unsettled[remaining], wrong[remaining]
        free[unsettled] ^= wrong
        x[unsettled] = 0
        for row in unsettled:
            chosen = np.flatnonzero(free[row])
            if len(chosen):
                _, found, failed = dposv(gram[chosen[:, None], chosen], -linear[row, chosen])
                x[row, chosen] = np.nan if failed else found
        derivatives[unsettled] = x[unsettled] @ gram + linear[unsettled]
    return x, unsettled
