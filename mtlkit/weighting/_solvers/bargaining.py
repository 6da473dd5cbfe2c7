"""The bargaining problem of Nash-MTL, FairGrad and PIVRG."""

import numpy as np

from mtlkit.weighting._solvers.geometry import EPS, Matrix, norms_and_cosines
from mtlkit.weighting._solvers.min_norm import is_stationary


def bargaining_weights(
    gram: Matrix, w: Matrix | None = None, *, power: float, rounding: float = EPS
) -> Matrix:
    """Solve ``G a = (w / a) ** power`` for a > 0: the minimum of ``a'Ga / 2 - sum_k phi_k(a_k)``.

    Here phi is the logarithm for power 1 (Nash-MTL) and ``a ** (1 - power) / (1 - power)`` otherwise
    (FairGrad), times ``w ** power`` (PIVRG; ones by default), so the problem is strictly convex
    and its solution unique. It is found by damped Newton's method, whose quadratic convergence ends at
    machine precision.

    A task whose gradient is zero gets weight zero. Where a positive
    combination of the gradients vanishes to ``rounding`` (a Pareto stationary point) no finite
    solution exists, and all weights are zero.

    >>> import numpy as np
    >>> gram = np.array([[4.0, -2.0], [-2.0, 2.0]])  # of (2, 0) and (-1, 1)
    >>> bargaining_weights(gram, power=1.0).round(4).tolist()
    [0.9239, 1.3066]
    """
    weights = np.zeros(len(gram))
    active = gram.diagonal() > 0
    if not active.any():
        return weights
    norms, cosines = norms_and_cosines(gram[np.ix_(active, active)])
    if is_stationary(cosines, rounding):
        return weights
    # a = b / norms turns the equation into C b = norms ** (power - 1) * (w / b) ** power;
    # the largest norm only sets the unit of b
    largest = norms.max()
    scale = (norms / largest) ** (power - 1)
    if w is not None:
        scale = scale * w[active] ** power
    solution = _solve_power_law(cosines, scale, power)
    weights[active] = solution * largest ** ((power - 1) / (power + 1)) / norms
    return weights


def _solve_power_law(cosines: Matrix, scale: Matrix, power: float) -> Matrix:
    """Solve ``C b = scale * b ** -power`` for b > 0."""
    b = scale ** (1 / (1 + power))  # the solution for orthogonal gradients
    square = b @ cosines @ b
    if square > 0:  # the best multiple of it
        b = b * ((scale @ b ** (1 - power)) / square) ** (1 / (1 + power))
    # rounding must not make the Hessian singular; this changes the steps, not where they end
    definite = cosines + len(b) * EPS * np.eye(len(b))
    previous = np.inf
    for _ in range(100):
        force = scale * b**-power
        gradient = cosines @ b - force
        step = -np.linalg.solve(definite + np.diag(power * force / b), gradient)
        size = np.abs(step / b).max()
        if size < 1e-6 and size >= previous:  # rounding is all that is left
            break
        previous = size
        if size >= 1e-3:  # the full step is right near the solution, and may be too long elsewhere
            step = step * _step_length(cosines, scale, power, b, step, float(gradient @ step))
        b = b + step
        if size < 1e-9:  # the error left is its square
            break
    return b


def _step_length(
    cosines: Matrix, scale: Matrix, power: float, b: Matrix, step: Matrix, slope: float
) -> float:
    """Return the longest step up to 1 that keeps b positive, halved until it hardly overshoots.

    The objective is convex, so a slope along the step that is still negative proves descent.
    """
    length = 0.95 / max(0.95, float((-step / b).max()))
    for _ in range(60):
        reached = b + length * step
        if step @ (cosines @ reached - scale * reached**-power) <= -0.1 * slope:
            break
        length /= 2
    return length
