"""SDMGrad: stochastic direction-oriented multi-objective descent."""

from typing import Annotated, Any

import numpy as np
from torch import Tensor

from mtlkit.config import Ge, Gt, Lt, Uniform, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import State, Tasks, on_host
from mtlkit.weighting._forms.simplex import SimplexWeights
from mtlkit.weighting._solvers import project_onto_simplex
from mtlkit.weighting._solvers.geometry import Matrix


@register_method("sdmgrad")
class SDMGrad(SimplexWeights):
    r"""Approach MGDA's weights by a few stochastic steps, held near the mean gradient.

    At every training step, ``n_iter`` steps of projected gradient descent with momentum on

    .. math:: \min_{w \in \Delta} \tfrac12 \Big\| \sum_k (w_k + \lambda u_k)\, G_k \Big\|^2,
        \qquad u_k = 1/K

    starting from the last weights; then the gradients get the weights :math:`(w + \lambda u) / (1 +
    \lambda)`. The products of gradients in this descent come from two independent samples: the even and
    the odd samples of the batch that the features hold. Without an axis of samples (in ``combine``, with
    ``wrt=parameters``, for a single sample) the Gram matrix is used instead. The products are divided by
    the square of the mean norm, so that ``lr`` has no unit.

    Update scale: K identical gradients g merge to g.

    Differences: the paper draws two batches for the products and a third for the step; here one batch
    serves for all. The authors' image code also draws three, but its three gradient buffers are one
    tensor, so that it multiplies the last batch's gradients with themselves; it takes the mean norm from
    these products, multiplies the result by K and clips it to norm 1. LibMTL and TorchJD take the norms
    from the products too, and set negative squares to zero; here the norms are those of the gradients.

    Args:
        lam: pull toward the mean gradient. The default is the authors' for NYUv2, LibMTL's and
            TorchJD's; the authors have 0.6 for reinforcement learning.
        lr: step size of the inner descent. The authors and TorchJD have 10, LibMTL 5. With these the
            descent jumps between corners of the simplex and amplifies rounding errors; 0.2 converges.
        momentum: momentum of the inner descent; 0.5 in all three.
        n_iter: number of inner steps; 20 in all three.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("sdmgrad", tasks=2).combine(grads)
        tensor([0.2003, 0.5999])
    """

    paper = (
        "Xiao et al., Direction-oriented Multi-objective Learning: Simple and Provable Stochastic "
        "Algorithms, NeurIPS 2023"
    )
    url = "https://arxiv.org/abs/2305.18409"
    idea = "A common descent direction, or a fair bargain"
    solves_on_host = True
    waived_laws = {
        "junction": "the features' gradients are compared between samples; combine is given no samples",
    }
    uses_cross_gram = True
    search_space = {"lam": Uniform(0.0, 1.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        lam: Annotated[float, Ge(0)] = 0.3,
        lr: Annotated[float, Gt(0)] = 0.2,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.5,
        n_iter: Annotated[int, Ge(1)] = 20,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.lam = lam
        self.lr = lr
        self.momentum = momentum
        self.n_iter = n_iter

    def move(self, w: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        products = safe_divide(state.cross_gram.double(), norms_of(gram).mean().square())
        moved = on_host(self._descend, products, w)
        return moved, state

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Pull the point toward the mean."""
        point, new = super().weigh(gram, state)
        return (point + self.lam / len(point)) / (1 + self.lam), new

    def _descend(self, products: Matrix, w: Matrix) -> Matrix:
        point, velocity = w, np.zeros_like(w)
        for _ in range(self.n_iter):
            velocity = self.momentum * velocity + products @ (point + self.lam / len(point))
            point = project_onto_simplex(point - self.lr * velocity)
        return point
