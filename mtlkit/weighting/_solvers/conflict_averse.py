"""CAGrad's problem: the best direction for the worst-off task within a ball around the mean."""

import numpy as np

from mtlkit.weighting._solvers.dual_cone import dual_cone_weights
from mtlkit.weighting._solvers.geometry import EPS, Matrix, matrix_root, nonzero, norms_and_cosines
from mtlkit.weighting._solvers.min_norm import min_norm_of_columns


def conflict_averse_weights(gram: Matrix, c: float, rounding: float = EPS) -> Matrix:
    """Return weights of the d within ``c |g_0|`` of the mean ``g_0`` with the largest ``min <g_k, d>``.

    The dual problem is ``min_w <g_w, g_0> + c |g_0| |g_w|`` over the simplex, and ``d = g_0 + c |g_0|
    g_w / |g_w|``. With ``|g_w| = t c |g_0|`` its optimality conditions are those of the point of the
    convex hull nearest to ``-t g_0``: a shortest vector, which non-negative least squares finds exactly.
    So only the number t is unknown: ``|g_w| / t`` falls with t, and on the face of the hull that the
    point lies on, the right t is known in closed form. It is the next guess, and the solution as soon as
    it leaves no duality gap; otherwise bisection finds the next t.

    Where the gradients are Pareto stationary to ``rounding``, the dual may end in ``g_w = 0``. Then d is
    the one nearest to ``g_0`` among the optima: the projection of ``g_0`` onto the dual cone.

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> conflict_averse_weights(gram, c=0.4).round(4).tolist()
    [0.5, 0.7]
    """
    count = len(gram)
    uniform = np.full(count, 1 / count)
    norms, cosines = norms_and_cosines(gram)
    if not norms.any():
        return uniform
    lengths = norms / norms.max()
    columns = matrix_root(cosines) * lengths  # the gradients, in K coordinates
    mean = columns @ uniform
    radius = c * float(np.linalg.norm(mean))
    if radius == 0:
        return uniform

    shortest = min_norm_of_columns(columns)
    least = float(np.linalg.norm(columns @ shortest))
    if least**2 <= count * rounding * (shortest @ lengths) ** 2:
        projected = dual_cone_weights(gram, uniform, rounding)
        change = columns @ (projected - uniform)
        if change @ change <= radius**2 + count * EPS * (projected @ lengths) ** 2:
            return projected

    def solution(point: Matrix) -> Matrix:
        length = float(np.linalg.norm(columns @ point))
        return uniform + point * (radius / length if length > 0 else 0.0)

    # t radius is between the lengths of the hull's shortest and longest vectors
    low, high = max(least, EPS) / (2 * radius), 2 / radius
    t = float(np.linalg.norm(mean)) / radius
    found = []
    for _ in range(80):
        nearest = min_norm_of_columns(columns + t * mean[:, None])
        found.append(solution(nearest))
        on_face, guess = _optimum_on_face(cosines, lengths, radius, nearest > 0)
        if on_face.min() >= 0:
            found.append(solution(on_face))
            if _leaves_no_gap(cosines, lengths, on_face, found[-1]):
                return found[-1]
        if np.linalg.norm(columns @ nearest) > t * radius:
            low = max(low, t)
        else:
            high = min(high, t)
        if not low < guess < high:
            if abs(guess - t) <= 1e-6 * t:  # rounding alone decides on which side it is
                break
            guess = np.sqrt(low * high)
        t = guess
    # rounding hides the optimum of an ill-conditioned matrix
    return max(found, key=lambda weights: (gram @ weights).min())


def _leaves_no_gap(cosines: Matrix, lengths: Matrix, point: Matrix, weights: Matrix) -> bool:
    """Return whether no ``<g_k, d>`` is below those of the point's face, to rounding: d is optimal."""
    parts = weights * lengths
    products = cosines @ parts  # of d with the unit gradients
    level = point @ (lengths * products) / point.sum()
    return bool((lengths * products - level >= -4 * len(parts) * EPS * lengths * parts.sum()).all())


def _optimum_on_face(
    cosines: Matrix, lengths: Matrix, radius: float, face: Matrix
) -> tuple[Matrix, float]:
    """Return weights, of any sign, and t of the dual's optimum over a face's affine hull; NaN if none.

    The point of the affine hull nearest to ``-t g_0`` is ``a + t b``, where a is its point nearest to
    zero and b is orthogonal to a: ``|a + t b| = t radius`` is an equation for ``t^2``. All is in units
    of the norms, which keeps the accuracy of short gradients next to long ones.
    """
    matrix = cosines[np.ix_(face, face)]
    border = (1 / nonzero(lengths[face]))[:, None]
    unit = 1 / border.max()
    border = border * unit
    # stationarity of the Lagrangian, and weights of sum one
    system = np.block([[matrix, border], [border.T, np.zeros((1, 1))]])
    targets = np.zeros((len(system), 2))
    targets[-1, 0] = 1
    targets[:-1, 1] = -(cosines[face] @ lengths) / len(lengths)
    # least squares, because the face may hold a gradient twice
    a, b = np.linalg.lstsq(system, targets, rcond=len(system) * EPS)[0][:-1].T
    height, room = a @ matrix @ a, radius**2 - b @ matrix @ b
    if not (height > 0 and room > 0):
        return np.full(len(lengths), np.nan), np.nan
    t = float(np.sqrt(height / room))
    weights = np.zeros(len(lengths))
    weights[face] = (a + t * b) * border[:, 0]
    return weights, t * unit
