"""PCD: priority-constrained descent."""

from typing import Annotated, Any

import numpy as np
from torch import Tensor

from mtlkit.config import Ge, Le, LogUniform, Lt, register_method
from mtlkit.engine.gram import eps_of, safe_divide
from mtlkit.method import State, Tasks, on_host
from mtlkit.weighting._forms.options import PrimaryMerge
from mtlkit.weighting._solvers import constrained_descent_weights
from mtlkit.weighting._solvers.geometry import Matrix


@register_method("pcd")
class PCD(PrimaryMerge):
    r"""Follow the primary task's gradient, but guarantee every other task some progress.

    .. math:: \min_d \|d - \tilde G_1\|^2 \quad \text{subject to}\quad
        \langle \tilde G_j, d \rangle \ge \tau\, \|\tilde G_j\|^2 \ \text{ for } j > 1

    with gradients :math:`\tilde G_k = G_k / \sqrt{v_k}` divided by the root of the moving average
    :math:`v_k` of their squared norms (bias-corrected). Then d is scaled to the norm of :math:`G_1`. The
    solution is exact, as a least distance problem. If :math:`G_1` is zero, so is the merged gradient. If
    no vector satisfies all constraints, it is :math:`G_1`, as in the paper.

    Update scale: K identical gradients g merge to g; the norm is always that of the primary gradient.

    Differences: none from the paper. The authors' code tries all sets of active constraints; it and
    TorchJD add 1e-8 to the average, so that small gradients are treated differently. Both have the same
    defaults. LibMTL does not have the method.

    Args:
        primary: name or index of the primary task; the first by default. While it is absent, the first
            task that is present takes its place.
        tau: fraction of its own normalized progress that every other task is guaranteed.
        beta: decay of the moving averages.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("pcd", tasks=2).combine(grads)
        tensor([1.3737, 1.4536])
    """

    paper = (
        "Varam and AlHajri, Not All Objectives Are Born Equal: Priority-Constrained Descent for "
        "Hierarchical Multi-Objective Optimization, TMLR 2026"
    )
    url = "https://arxiv.org/abs/2606.29521"
    idea = "A chosen point of the Pareto front"
    solves_on_host = True
    search_space = {"tau": LogUniform(0.005, 0.5)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        tau: Annotated[float, Ge(0), Le(1)] = 0.02,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.999,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.tau = tau
        self.beta = beta
        self.add_state("squares", 0.0)
        self.add_state("seen", 0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        seen = state.seen + 1
        squares = self.beta * state.squares + (1 - self.beta) * gram.diagonal()
        scales = safe_divide(1 - self.beta ** seen.double(), squares).sqrt()
        rounding = eps_of(gram)

        def descend(gram: Matrix, scales: Matrix, is_primary: Matrix) -> Matrix:
            first = int(is_primary.argmax())  # the first task where none is primary
            order = [first, *(k for k in range(len(gram)) if k != first)]
            scaled = (gram * scales[:, None] * scales)[np.ix_(order, order)]
            weights = np.zeros(len(gram))
            if scaled[0, 0] > 0:
                weights[order] = constrained_descent_weights(scaled, self.tau)
                square = weights[order] @ scaled @ weights[order]
                # a direction that is zero to rounding has no length that could be scaled
                if square <= rounding * (weights[order] @ np.sqrt(scaled.diagonal())) ** 2:
                    return np.zeros(len(gram))
                weights = weights * scales * np.sqrt(gram[first, first] / square)
            return weights

        weights = on_host(descend, gram, scales, state.is_primary)
        return weights, state.replace(squares=squares, seen=seen)
