"""FairGrad: alpha-fair allocation of progress to the tasks."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Ge, Uniform, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import GradientAggregator, State, Tasks, on_host
from mtlkit.weighting._solvers import bargaining_weights


@register_method("fairgrad")
class FairGrad(GradientAggregator):
    r"""Divide progress among the tasks by alpha-fairness.

    The merged gradient :math:`d = \sum_k w_k G_k` maximizes :math:`\sum_k \langle G_k, d \rangle^{1 -
    \alpha} / (1 - \alpha)` in a ball, so that the weights solve

    .. math:: \mathbf{G}\, w = w^{-1/\alpha}, \qquad w > 0

    with the Gram matrix :math:`\mathbf{G}`, which is all that is needed. The unique solution is found by
    Newton's method on a convex problem. ``alpha=1`` is Nash-MTL, ``alpha=0`` is the plain
    sum, and large alpha tends to MGDA's direction. A task whose gradient is zero gets weight zero.
    Where a positive combination of the gradients vanishes (a Pareto stationary point), the equation
    has no solution and d is zero.

    Update scale: K identical gradients g merge to :math:`K^{1/(1+\alpha)}\,
    \|g\|^{-2\alpha/(1+\alpha)}\, g`. By default that is :math:`\sqrt K\, g / \|g\|`.

    Differences: none in the equation. The authors and TorchJD minimize the squared residual, which is
    not convex, to a tolerance. The authors' code for supervised learning then multiplies d by K and
    clips its norm to 1; LibMTL does neither.

    Args:
        alpha: 0 is the sum, 1 proportional fairness; larger values favor the worst-off tasks. 1 is the
            default of the authors' code and of LibMTL; the authors' scripts for QM9 and CelebA have 2.
            TorchJD has no default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("fairgrad", tasks=2).combine(grads)
        tensor([0.5412, 1.3066])
    """

    paper = "Ban and Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024"
    url = "https://arxiv.org/abs/2402.15638"
    idea = "A common descent direction, or a fair bargain"
    solves_on_host = True
    waived_laws = {
        "single_task": "the equation gives a single gradient g the length |g|^((1-alpha)/(1+alpha))",
    }
    search_space = {"alpha": Uniform(0.5, 3.0)}

    def __init__(
        self, tasks: Tasks, *, alpha: Literal[0] | Annotated[float, Ge(0.05)] = 1.0, **common: Any
    ) -> None:
        super().__init__(tasks, **common)
        self.alpha = alpha

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        if self.alpha == 0:
            return torch.ones_like(gram[0]), state
        weights = on_host(bargaining_weights, gram, power=1 / self.alpha, rounding=eps_of(gram))
        return weights.to(gram.dtype), state
