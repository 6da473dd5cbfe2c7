"""Small problems on K x K Gram matrices, solved to machine precision.

Everything here is relative: no absolute threshold decides a branch, so that a problem and its
multiple by 1e-12 or 1e12 have the same solution. The solvers work on the cosine matrix and put the
norms back in closed form wherever the problem allows, which keeps the relative accuracy of short
gradients next to long ones. Where weights are not unique (dependent gradients), the merged gradient
is, and each solver says which weights it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Matrix = np.ndarray


def readable(t):
    return False


def as_array(t):
    return t.numpy()


def as_tensor(a, l):
    return torch.from_numpy(a).to(l)


def is_finite(a):
    return bool(np.isfinite(a).all())


__all__ = [
    "bargaining_weights",
    "closed_form",
    "conflict_averse_weights",
    "constrained_descent_weights",
    "cosine_matrix",
    "dual_cone_projections",
    "dual_cone_weights",
    "min_norm_point",
    "precision",
    "project_onto_simplex",
    "safe_divide",
    "shortening_sums",
    "solve",
    "symmetric_pseudo_inverse",
]

Array = TypeVar("Array", Tensor, np.ndarray)
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)


def closed_form(formula: Callable[..., Any], *tensors: Tensor, **options: float) -> Tensor:
    """``formula(xp, *arrays, **options)`` in float64, with NumPy as ``xp`` or else with torch.

    NumPy takes a third of torch's time for an operation on a few numbers, if they are at hand. The
    formula is written once, in words that both have, and leaves the arrays that it is given alone.
    """
    if not readable(tensors[0]):
        result: Tensor = formula(torch, *[t.detach().double() for t in tensors], **options)
        return result
    with np.errstate(all="ignore"):  # as in torch, what is not finite is not announced
        return torch.from_numpy(formula(np, *map(as_array, tensors), **options))


def safe_divide(numerator: Array, denominator: Array, xp: Any = torch) -> Array:
    """Quotient, and zero where the denominator is zero."""
    zero = denominator == 0
    quotient: Array = xp.where(zero, 0.0, numerator / (denominator + zero))
    return quotient


def cosine_matrix(gram: Array, xp: Any = torch) -> Array:
    """(K, K) cosines of the task gradients; rows and columns of zero gradients are zero."""
    norms = xp.sqrt(gram.diagonal())
    inverse = xp.where(norms == 0, 0.0, 1 / norms)
    cosines: Array = gram * inverse[:, None] * inverse[None, :]
    return cosines


def symmetric_pseudo_inverse(matrix: Array, xp: Any = torch, rounding: float = _EPS) -> Array:
    """Moore-Penrose inverse of a positive semidefinite matrix that is known to ``rounding``."""
    finite = xp.isfinite(matrix).all()
    values, vectors = xp.linalg.eigh(xp.where(finite, matrix, 0.0))
    cutoff = values[-1] * len(matrix) * rounding * 8
    inverse = xp.where(values > cutoff, 1 / values, 0.0)
    result: Array = xp.where(finite, (vectors * inverse) @ vectors.T, xp.nan)
    return result


def solve(solver: Callable[..., Matrix], gram: Tensor, *arguments: Matrix | float) -> Tensor:
    """Run a NumPy solver on a Gram matrix, in float64; NaN weights where it is not finite.

    Further arguments are handed on; they have to be finite where the matrix is.
    """
    matrix = as_array(gram)
    if not is_finite(matrix):
        return torch.full_like(gram[0], torch.nan)
    return as_tensor(solver(matrix, *arguments), gram)


def precision(gram: Tensor) -> float:
    """Relative rounding error of the Gram matrix: that of the type it was computed in."""
    return float(torch.finfo(gram.dtype).eps)


def min_norm_point(gram: Matrix) -> Matrix:
    """Barycentric weights of the shortest vector in the convex hull.

    Lawson and Hanson's non-negative least squares of ``[A; 1] x = [0; 1]`` with ``A'A = gram``,
    normalised. A is the root of the cosine matrix times the norms.
    """
    norms = np.sqrt(gram.diagonal())
    if not norms.all():
        return (norms == 0) / np.count_nonzero(norms == 0)
    if len(gram) == 1:
        return np.ones(1)
    cosines = gram / (norms[:, None] * norms)
    return _hull_weights(_root(cosines) * (norms / norms.min()))


def project_onto_simplex(point: Matrix) -> Matrix:
    """The nearest vector with non-negative entries of sum one."""
    shifted = point - (point.sum() - 1) / len(point)
    if shifted.min() >= 0:
        return shifted
    descending = np.sort(point)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    positive = np.count_nonzero(descending > excess)
    return np.maximum(point - excess[positive - 1], 0)


def dual_cone_projections(gram: Matrix) -> Matrix:
    """(K, K) weights: row i gives the projection of gradient i onto the dual cone of all gradients.

    The projection of ``g_i`` is the shortest ``g_i + sum_j x_j g_j`` with ``x >= 0``. In units of the
    norms this is a problem on the cosines alone. A zero gradient neither moves nor moves others.
    """
    norms, cosines = _cosines(gram)
    identity = np.eye(len(gram))
    return identity + shortening_sums(cosines, identity) * norms[:, None] / _or_one(norms)


def dual_cone_weights(gram: Matrix, weights: Matrix) -> Matrix:
    """Weights of the projection of ``sum_k w_k g_k`` onto the dual cone of all gradients."""
    norms, cosines = _cosines(gram)
    return weights + shortening_sums(cosines, (weights * norms)[None])[0] / _or_one(norms)


def shortening_sums(cosines: Matrix, start: Matrix) -> Matrix:
    """For each row z of ``start``, the x >= 0 for which ``sum_k (z_k + x_k) u_k`` is shortest.

    The u are unit vectors (or zeros) with the given inner products. All rows are solved at once by
    block principal pivoting: guess which entries are positive, solve, exchange all that have the
    wrong sign. A guess is accepted where the optimality conditions hold to rounding; the rows that
    are left (a singular system, or guesses that cycle) are solved by Lawson and Hanson's method.
    """
    count, ones = len(cosines), np.ones(len(cosines))
    linear = (-start).dot(cosines)
    first = np.maximum(linear, 0)
    inside = (linear + first > first.dot(cosines)) & (cosines.diagonal() > 0)
    sizes = np.abs(start).dot(ones)
    solution = np.zeros_like(linear)
    unsolved: list[int] = []
    pending = np.arange(len(linear))
    wanted = linear
    for _ in range(8):
        guess = _solve_inside(cosines, inside, wanted)
        slack = guess.dot(cosines) - wanted
        size = np.abs(guess).dot(ones) + sizes
        tolerance = (4 * count * _EPS * size)[:, None]
        # a nearly singular system gives large entries, which rounding makes worthless
        trusted = (~inside | (np.abs(slack) <= tolerance)).all(axis=1) & (size < 1e4 * count)
        wrong = np.where(inside, guess, slack) < -tolerance
        done = trusted & ~wrong.any(axis=1)
        if done.all():
            solution[pending] = np.maximum(guess, 0)
            pending = pending[:0]
            break
        solution[pending[done]] = np.maximum(guess[done], 0)
        unsolved += pending[~trusted].tolist()
        again = trusted & ~done
        pending, wanted, sizes = pending[again], wanted[again], sizes[again]
        inside = inside[again] ^ wrong[again]
        if not len(pending):
            break
    unsolved += pending.tolist()
    if unsolved:
        from scipy.optimize import nnls

        root = _root(cosines)
        for row in unsolved:
            solution[row] = nnls(root, -root @ start[row])[0]
    return solution


def _solve_inside(matrix: Matrix, inside: Matrix, wanted: Matrix) -> Matrix:
    """For each row x of the result: ``matrix x = wanted`` where ``inside``, and zero elsewhere.

    NaN where these rows and columns are singular.
    """
    from scipy.linalg.lapack import dposv  # np.linalg.solve takes five times as long to call

    systems = np.where(inside[:, :, None] & inside[:, None, :], matrix, np.eye(len(matrix)))
    found = np.where(inside, wanted, 0.0)
    for row, system in enumerate(systems):
        _, found[row], singular = dposv(system, found[row])
        if singular:
            found[row] = np.nan
    return found


def bargaining_weights(gram: Matrix, power: float, rounding: float = _EPS) -> Matrix:
    r"""The a > 0 with ``G a = a ** -power``: the minimum of ``a'Ga / 2 - sum_k phi(a_k)``.

    Here phi is the logarithm for power 1 and ``a ** (1 - power) / (1 - power)`` otherwise, so the
    problem is convex and its solution unique; it is found by Newton's method with a line search, in
    units of the norms. A task whose gradient is zero has nothing to bargain about and gets weight
    zero. Where a positive combination of the gradients vanishes to ``rounding`` (a Pareto stationary
    point) no finite solution exists, and all weights are zero.
    """
    from scipy.linalg.lapack import dposv

    norms = np.sqrt(gram.diagonal())
    weights = np.zeros(len(gram))
    if not norms.all():
        active = norms > 0
        if active.any():
            weights[active] = bargaining_weights(gram[np.ix_(active, active)], power, rounding)
        return weights
    cosines = gram / (norms[:, None] * norms)
    # with b = a * norms, C b = h * b ** -power; the largest norm only sets the unit of b
    largest, ones = max(norms.tolist()), np.ones(len(gram))
    along = slice(None, None, len(gram) + 1)  # the diagonal
    unit = largest ** ((power - 1) / (1 + power))
    h = (norms / largest) ** (power - 1)
    b = h ** (1 / (1 + power))
    square = b.dot(cosines).dot(b)
    if square > 0:
        b = b * (ones.dot(h * b ** (1 - power)) / square) ** (1 / (1 + power))
    previous = np.inf
    for _ in range(100):
        force = h * b**-power
        # b'Cb is known to rounding * sum(b)^2, and equals sum(force * b) at the solution
        if rounding * ones.dot(b) ** 2 > force.dot(b):
            return weights
        gradient = cosines.dot(b) - force
        system = cosines.copy()
        system.flat[along] += power * force / b
        # np.linalg.solve takes five times as long to call; the sign follows from the gradient's
        step = -dposv(system, gradient)[1]
        relative = step / b
        changes = relative.tolist()  # a few numbers: Python's max is quicker than NumPy's
        lowest = min(changes)
        size = max(max(changes), -lowest)
        if size <= 4 * _EPS or (size < 1e-6 and size >= previous):
            break
        previous = size
        if size < 1e-3:
            b = b + step  # quadratic convergence has set in
            if size < 1e-9:
                break  # what is left is its square
        else:
            slope = gradient.dot(step)
            b = b + _step_length(cosines, h, power, b, step, relative, lowest, slope) * step
    return b * unit / norms


def _step_length(
    cosines: Matrix,
    h: Matrix,
    power: float,
    b: Matrix,
    step: Matrix,
    relative: Matrix,
    lowest: float,
    slope: float,
) -> float:
    """The largest of 1, 1/2, 1/4 ... that stays positive and lowers the objective as it should.

    The change of the objective is summed from its parts relative to b, not taken as a difference of
    two values, so that it is right down to rounding.
    """
    length = 1.0 if lowest >= 0 else min(1.0, -0.95 / lowest)
    image = cosines.dot(step)
    curve, linear = step.dot(image), b.dot(image)
    value = h * b ** (1 - power)
    for _ in range(60):
        log = np.log1p(length * relative)
        gain = log if power == 1 else np.expm1((1 - power) * log) / (1 - power)
        change = length * linear + length * length * curve / 2 - value.dot(gain)
        if change <= 1e-4 * length * slope:
            break
        length /= 2
    return length


def conflict_averse_weights(gram: Matrix, c: float, rounding: float = _EPS) -> Matrix:
    r"""CAGrad's weights: the d within ``c |g_0|`` of the mean ``g_0`` with the largest ``min <g_k, d>``.

    If it is known which tasks are the worst-off, d has a closed form; most problems are solved by
    guessing these and exchanging the wrong ones until the optimality conditions hold.

    Otherwise by the dual, ``min_w <g_w, g_0> + c |g_0| |g_w|`` over the simplex. For the t with
    ``|g_w| = t c |g_0|`` its optimality conditions are those of the point of the hull nearest to
    ``-t g_0``, which non-negative least squares finds exactly; ``|g_w(t)| / t`` falls with t, and on
    the face of the hull that the point lies on, the right t is known in closed form. So a few
    projections, each on the face that the last one suggests, end with the exact solution.

    Where the gradients are Pareto stationary the dual may end in ``g_w = 0``, and then d is the one
    nearest to ``g_0`` among the optima: the projection of ``g_0`` onto the dual cone.
    """
    count = len(gram)
    uniform = np.full(count, 1 / count)
    norms = np.sqrt(gram.diagonal())
    largest = norms.max()
    if largest == 0 or c == 0:
        return uniform
    problem = _ConflictAverse(gram, norms, c)
    if norms.all() and problem.square > 0:
        weights = problem.pivot()
        if weights is not None:
            return weights
    columns = _root(_cosines(gram)[1]) * (norms / largest)  # the gradients, in K coordinates
    mean = columns @ uniform
    radius = c * float(np.linalg.norm(mean))
    if radius == 0:
        return uniform
    shortest = min_norm_point(gram)
    vanishing = np.sqrt(count * rounding) * (shortest @ norms) / largest
    if np.linalg.norm(columns @ shortest) <= vanishing:
        projected = dual_cone_weights(gram, uniform)
        if np.linalg.norm(columns @ (projected - uniform)) <= radius:
            return projected
    weights = _conflict_averse_hull(columns, mean, radius)
    found = uniform + weights * (radius / np.linalg.norm(columns @ weights))
    support = np.flatnonzero(weights)
    exact = problem.solve(support) if norms[support].all() else None
    polished = problem.weights(exact[0]) if exact is not None and exact[2] else None
    if polished is None or (gram @ polished).min() < (gram @ found).min():
        return found
    return polished


def _conflict_averse_hull(columns: Matrix, mean: Matrix, radius: float) -> Matrix:
    """Minimum of ``<g_w, mean> + radius |g_w|`` over the simplex, where it is not at zero."""
    low, high = 0.0, np.inf
    t = float(np.linalg.norm(mean)) / radius
    face: bytes | None = None
    weights = np.full(columns.shape[1], 1 / columns.shape[1])
    for _ in range(80):
        weights = _min_norm_of_columns(columns + t * mean[:, None])
        support = weights > 0
        if support.tobytes() == face:
            break
        if np.linalg.norm(columns @ weights) > t * radius:
            low = t
        else:
            high = t
        # on the face, g_w = a + t b with a orthogonal to b
        chosen = columns[:, support]
        basis = _range(chosen[:, 1:] - chosen[:, :1])
        a = chosen[:, 0] - basis @ (basis.T @ chosen[:, 0])
        b = basis.T @ mean
        room = radius * radius - b @ b
        face = None
        if room > 0:
            proposed = float(np.linalg.norm(a) / np.sqrt(room))
            if abs(proposed - t) <= 4 * _EPS * t:
                break
            if low < proposed < high:
                t, face = proposed, support.tobytes()
                continue
        if high == np.inf:
            t *= 8
        else:
            t = np.sqrt(low * high) if low > 0 else t / 8
        if not low < t < high:
            break
    return weights


class _ConflictAverse:
    """CAGrad where it is known which gradients decide: ``<g_k, d>`` is one number mu for these.

    In units of the norms the corrections are ``y = mu p - q``, and their length gives mu. Unlike
    the search along t this keeps the accuracy of short gradients next to long ones.
    """

    def __init__(self, gram: Matrix, norms: Matrix, c: float) -> None:
        self.count = len(gram)
        self.lengths = norms / norms.max()
        safe = _or_one(norms)
        self.cosines = gram / safe[:, None] / safe[None, :]
        share = self.lengths / self.count
        self.products = self.cosines @ share
        self.terms = share.sum()
        self.square = c * c * (share @ self.products)

    def solve(self, support: Matrix) -> tuple[Matrix, float, bool] | None:
        """(K,) corrections, mu, and whether these gradients can have one product within the ball.

        If they cannot, the corrections are the shortest with which they do.
        """
        inverse, products = 1 / self.lengths[support], self.products[support]
        system = self.cosines[support[:, None], support]
        try:
            p, q = np.linalg.solve(system, np.array([inverse, products]).T).T
        except np.linalg.LinAlgError:
            return None
        pp, pq, qq = p @ inverse, p @ products, q @ products
        discriminant = pq * pq - pp * (qq - self.square)
        if not pp > 0:
            return None
        mu = (pq + np.sqrt(max(discriminant, 0.0))) / pp
        y = np.zeros(self.count)
        y[support] = mu * p - q
        return y, mu, discriminant >= 0

    def weights(self, y: Matrix) -> Matrix | None:
        """Weights of the task gradients, if the corrections are well determined."""
        square, terms = y @ self.cosines @ y, y.sum()
        if not (y.min() >= 0 and square > 1e-8 * terms * terms):
            return None
        return 1 / self.count + y * np.sqrt(self.square / square) / _or_one(self.lengths)

    def pivot(self) -> Matrix | None:
        """Guess which gradients decide, exchange those that are wrong; None if that does not end."""
        inside = np.ones(self.count, dtype=bool)
        for _ in range(8):
            found = self.solve(np.flatnonzero(inside))
            if found is None:
                return None
            y, mu, reached = found
            slack = self.cosines @ y + self.products - mu / self.lengths
            tolerance = 4 * self.count * _EPS * (np.abs(y).sum() + self.terms)
            wrong = np.where(inside, y < 0, slack < -tolerance)
            if not wrong.any():
                return self.weights(y) if reached else None
            inside ^= wrong
            if not inside.any():
                return None
        return None


def constrained_descent_weights(gram: Matrix, progress: float) -> Matrix:
    """Weights of the vector nearest to gradient 0 with ``<g_j, d> >= progress |g_j|^2`` for j >= 1.

    Lawson and Hanson's least distance programming. Where no vector satisfies all constraints, the
    weights are those of gradient 0 alone.
    """
    from scipy.optimize import nnls

    count = len(gram)
    weights = np.zeros(count)
    weights[0] = 1
    if count == 1:
        return weights
    norms, cosines = _cosines(gram)
    lengths = norms[1:]
    if not lengths.all():
        bound = np.append(0, np.flatnonzero(lengths) + 1)
        weights[bound] = constrained_descent_weights(gram[np.ix_(bound, bound)], progress)
        return weights
    root = _root(cosines)  # unit gradients as columns
    needed = progress * lengths - (root[:, 0] * norms[0]).dot(root[:, 1:])
    unit = max(*map(abs, needed.tolist()), _TINY)
    system = np.empty((count + 1, count - 1))
    system[:-1] = root[:, 1:]
    system[-1] = needed / unit
    target = np.zeros(count + 1)
    target[-1] = 1
    multipliers, residual = nnls(system, target)
    if residual * residual <= 64 * count * _EPS * (1 + sum(multipliers.tolist())):
        return weights
    weights[1:] = multipliers * unit / (residual * residual) / lengths
    return weights


def _min_norm_of_columns(columns: Matrix) -> Matrix:
    """Barycentric weights of the point of the columns' hull that is nearest to zero."""
    lengths = np.sqrt(np.einsum("ij,ij->j", columns, columns))
    shortest = lengths.min()
    if shortest == 0:
        return (lengths == 0) / np.count_nonzero(lengths == 0)
    return _hull_weights(columns / shortest)


def _hull_weights(columns: Matrix) -> Matrix:
    """Those weights, for columns of which the shortest has length one."""
    from scipy.optimize import nnls

    system = np.empty((len(columns) + 1, columns.shape[1]))
    system[:-1] = columns
    system[-1] = 1
    target = np.zeros(len(system))
    target[-1] = 1
    solution, _ = nnls(system, target)
    return solution / solution.sum()


def _cosines(gram: Matrix) -> tuple[Matrix, Matrix]:
    norms = np.sqrt(gram.diagonal())
    safe = _or_one(norms)
    return norms, gram / (safe[:, None] * safe)


def _or_one(values: Matrix) -> Matrix:
    return values + (values == 0)


def _root(matrix: Matrix) -> Matrix:
    """R with ``R'R = matrix``: a Cholesky factor, or by eigenvalues where rounding denies one."""
    from scipy.linalg.lapack import dpotrf  # np.linalg.cholesky takes three times as long to call

    factor: Matrix
    factor, failed = dpotrf(matrix)
    # a tiny pivot is a difference of rounding errors; the eigenvalues keep their absolute accuracy
    pivots = factor.diagonal().tolist()
    if not failed and min(pivots) > 1e-4 * max(pivots):
        return factor
    values, vectors = np.linalg.eigh(matrix)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def _range(matrix: Matrix) -> Matrix:
    """Orthonormal basis of the span of the columns."""
    if matrix.shape[1] == 0:
        return np.zeros((len(matrix), 0))
    vectors, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return vectors[:, values > len(matrix) * _EPS * values[0]]
