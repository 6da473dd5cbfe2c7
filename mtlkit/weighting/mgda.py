"""MGDA: the point of minimum norm in the convex hull of the task gradients."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mtlkit.config import Choice, register_method
from mtlkit.engine.gram import norms_of
from mtlkit.method import GradientAggregator, State, Tasks, on_host
from mtlkit.weighting._solvers import min_norm_point
from mtlkit.weighting._solvers.geometry import Matrix


@register_method("mgda")
class MGDA(GradientAggregator):
    r"""Follow the shortest vector in the convex hull of the task gradients.

    .. math:: \min_{w \ge 0,\ \sum_k w_k = 1} \Big\| \sum_k w_k\, \frac{G_k}{c_k} \Big\|^2

    The merged gradient is :math:`\sum_k w_k G_k`, of the gradients themselves. At the features (the
    default) this is MGDA-UB. The optimum is exact, by an active-set method on the Gram matrix. Where
    the weights are not unique (dependent gradients), the shortest vector is. A task whose gradient is
    zero is Pareto stationary, so then the merged gradient is zero.

    Update scale: K identical gradients g merge to g.

    Differences: none from the paper, which has no :math:`c_k`; these are an option of the authors' code.
    The authors, LibMTL and TorchJD run the Frank-Wolfe method to a tolerance. LibMTL has the same
    options and default; with gradients of parameters it also applies the weights to the divided
    gradients. TorchJD has none of the options. The authors' one published setting, for CelebA, has
    ``loss+``.

    Args:
        normalize: the divisors :math:`c_k`: ``none`` is 1, ``l2`` the norm of the gradient, ``loss`` the
            absolute value of the loss as it was given, before other parts weigh it, ``loss+`` the
            product of both. A task whose loss is zero gets weight zero; if all are zero, the weights are
            equal.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("mgda", tasks=2).combine(grads)
        tensor([0.2000, 0.6000])
    """

    paper = "Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018"
    url = "https://arxiv.org/abs/1810.04650"
    idea = "A common descent direction, or a fair bargain"
    solves_on_host = True
    search_space = {"normalize": Choice("none", "l2", "loss", "loss+")}

    def __init__(
        self,
        tasks: Tasks,
        *,
        normalize: Literal["none", "l2", "loss", "loss+"] = "none",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.normalize = normalize
        self.uses_losses = normalize in ("loss", "loss+")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        if self.normalize == "none":
            return on_host(min_norm_point, gram), state
        sizes = state.losses.abs() if self.uses_losses else torch.ones_like(gram[0])
        if self.normalize in ("l2", "loss+"):
            sizes = sizes * norms_of(gram)
        return on_host(_min_norm_weights, gram, sizes), state


def _min_norm_weights(gram: Matrix, sizes: Matrix) -> Matrix:
    """Weights for the gradients divided by their ``sizes``; one of size zero gets weight zero."""
    sizes = np.where(gram.diagonal() == 0, 1, sizes)  # a zero gradient stays zero
    chosen = np.flatnonzero(sizes)
    if not np.isfinite(sizes).all() or not len(chosen):
        return np.full(len(gram), 1 / len(gram) if np.isfinite(sizes).all() else np.nan)
    weights = np.zeros(len(gram))
    sizes = sizes[chosen] / sizes[chosen].max()
    weights[chosen] = min_norm_point(gram[np.ix_(chosen, chosen)] / sizes[:, None] / sizes)
    return weights
