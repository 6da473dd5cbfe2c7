"""RotoGrad's gradient-magnitude homogenization."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("scale")
class Scale(GradientAggregator):
    r"""Give all task gradients one norm, set by the tasks that have converged least.

    With :math:`U_k = G_k / \|G_k\|`, the merged gradient is :math:`C \sum_k U_k` where

    .. math:: C = \sum_k \alpha_k \|G_k\|, \qquad
        \alpha_k = \frac{\|G_k\| / \|G_k^0\|}{\sum_i \|G_i\| / \|G_i^0\|}

    and :math:`G_k^0` is the task's first gradient (section 3.1 of the paper). A task whose gradient
    is zero takes no part in the step; its reference is the first gradient that is not zero.

    Update scale: K identical gradients g merge to K g.

    Differences: none from the paper. The authors' package (rotograd 0.1.6) replaces norms below 1e-15 by
    1e-15, so that a zero gradient takes part in the ratios. LibMTL and TorchJD do not have the method.

    Args:
        burn_in: take the reference norms again at this step, counted from 1; 0 keeps the first. The
            authors' package has a period of 20 and takes them at step 21: ``burn_in=21``.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("scale", tasks=2).combine(grads)
        tensor([0.5000, 1.2071])
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    url = "https://arxiv.org/abs/2103.02631"
    idea = "Homogenize sizes and directions (RotoGrad)"
    reads_angles = False

    def __init__(self, tasks: Tasks, *, burn_in: Annotated[int, Ge(0)] = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.burn_in = burn_in
        self.add_state("initial_norms", 0.0)
        self.add_state("seen", 0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        norms = norms_of(gram)
        renew = (state.initial_norms == 0) | (state.seen + 1 == self.burn_in)
        initial = torch.where(renew, norms, state.initial_norms)
        ratios = safe_divide(norms, initial)
        alphas = safe_divide(ratios, ratios.sum())
        weights = safe_divide((alphas * norms).sum(), norms)
        return weights, state.replace(initial_norms=initial, seen=state.seen + 1)
