"""Small problems on K x K Gram matrices, solved to machine precision in NumPy.

Everything is relative: no absolute threshold decides a branch, so a problem and its multiple by 1e-12
or 1e12 have the same solution. The solvers work on the cosines of the gradients and put the norms back
in closed form, which keeps the relative accuracy of short gradients next to long ones. Where weights
are not unique (dependent gradients), the merged gradient is.

All functions take and return float64 arrays and expect finite numbers.
"""

from mtlkit.weighting._solvers.bargaining import bargaining_weights
from mtlkit.weighting._solvers.conflict_averse import conflict_averse_weights
from mtlkit.weighting._solvers.dual_cone import (
    dual_cone_corrections,
    dual_cone_projections,
    dual_cone_weights,
)
from mtlkit.weighting._solvers.geometry import project_onto_simplex
from mtlkit.weighting._solvers.least_distance import constrained_descent_weights
from mtlkit.weighting._solvers.min_norm import min_norm_point

__all__ = [
    "bargaining_weights",
    "conflict_averse_weights",
    "constrained_descent_weights",
    "dual_cone_corrections",
    "dual_cone_projections",
    "dual_cone_weights",
    "min_norm_point",
    "project_onto_simplex",
]
