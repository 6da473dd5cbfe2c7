"""Nash-MTL: the tasks bargain over the direction."""

import math
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from mtlkit.config import Ge, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import GradientAggregator, State, Tasks, on_host
from mtlkit.weighting._solvers import bargaining_weights
from mtlkit.weighting._solvers.geometry import Matrix


@register_method("nash_mtl")
class NashMTL(GradientAggregator):
    r"""Follow the Nash bargaining solution of the tasks.

    The merged gradient :math:`d = \sum_k w_k G_k` maximizes :math:`\sum_k \log \langle G_k, d
    \rangle` in a ball, so that the weights solve

    .. math:: \mathbf{G}\, w = 1 / w, \qquad w > 0

    with the Gram matrix :math:`\mathbf{G}`. They are the unique minimum of the convex
    :math:`\frac12 w^\top \mathbf{G} w - \sum_k \log w_k`, found by Newton's method. A task whose
    gradient is zero gets weight zero. Where a positive combination of the gradients vanishes (a Pareto
    stationary point) the equation has no solution, and d is zero.

    Update scale: :math:`\|d\| = \sqrt K` for all gradients; K identical gradients g merge to
    :math:`\sqrt K\, g / \|g\|`.

    Differences: none from the paper's equation. The authors' code, LibMTL and TorchJD approach its
    solution by a sequence of conic programs, 20 at most by default.

    Args:
        update_every: solve for new weights only every this many steps.
        max_norm: bound of :math:`\|d\|`; None, or 0, for none. The authors' code, LibMTL and TorchJD
            have 1, a bound for the gradient of the shared parameters; a feature's gradient is another
            quantity, so there is no bound by default. ``nash_mtl(wrt=parameters, max_norm=1)`` is
            theirs.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("nash_mtl", tasks=2).combine(grads)
        tensor([0.5412, 1.3066])
    """

    paper = "Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022"
    url = "https://arxiv.org/abs/2202.01017"
    idea = "A common descent direction, or a fair bargain"
    solves_on_host = True
    waived_laws = {
        "single_task": "a single task bargains alone and gets the unit vector along its gradient",
    }

    def __init__(
        self,
        tasks: Tasks,
        *,
        update_every: Annotated[int, Ge(1)] = 1,
        max_norm: Annotated[float, Ge(0)] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.update_every = update_every
        self.max_norm = max_norm
        self.add_state("kept", -1.0)  # negative: not solved yet
        self.add_state("age", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        rounding = eps_of(gram)

        def bargain(gram: Matrix, kept: Matrix, age: Matrix) -> Matrix:
            if age % self.update_every == 0 or (kept < 0).any():
                kept = bargaining_weights(gram, power=1.0, rounding=rounding)
            return np.stack([_clip(kept, gram, self.max_norm), kept])

        weights, kept = on_host(bargain, gram, state.kept, state.age)
        return weights, state.replace(kept=kept, age=state.age + 1)


def _clip(weights: Matrix, gram: Matrix, max_norm: float | None) -> Matrix:
    """Scale the weights down so that the norm of the merged gradient is at most ``max_norm``."""
    norm = math.sqrt(max(float(weights @ gram @ weights), 0.0))
    return weights * (max_norm / norm) if max_norm and norm > max_norm else weights
