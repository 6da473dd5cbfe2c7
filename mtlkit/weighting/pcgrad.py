"""PCGrad: project conflicting gradients."""

from typing import Any

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.engine.randomness import random_orders
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("pcgrad")
class PCGrad(GradientAggregator):
    r"""Remove from each task's gradient what conflicts with the others.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order

    .. math:: g \leftarrow g - \frac{\min(0, \langle g, G_j \rangle)}{\|G_j\|^2} G_j

    and the results are added (Algorithm 1 of the paper). The projections stay in the span of the task
    gradients, so the Gram matrix suffices: they are carried out on the coefficients.

    Update scale: K identical gradients g merge to K g.

    Differences: none from the paper. LibMTL and TorchJD also add. The authors' code discards its
    shuffle, so its order is always that of the losses.

    Args:
        seed: seed of the random orders, which are the same on every process.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("pcgrad", tasks=2).combine(grads)
        tensor([1., 2.])
    """

    paper = "Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020"
    url = "https://arxiv.org/abs/2001.06782"
    idea = "Remove conflicts: project or turn gradients"
    waived_laws = {
        "permutation": "the projection order is drawn per position (exact for two tasks)",
    }

    def __init__(self, tasks: Tasks, *, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.seed = seed
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        exact = gram.double()
        orders = random_orders(self.seed, state.draws, len(gram))  # (K, K - 1): onto whom, by turn
        coef = safe_divide(exact, exact.diagonal())  # <G_i, G_j> / |G_j|^2
        # row i belongs to the gradient of task i as it is projected
        current, removed = coef.clone(), torch.zeros_like(exact)
        for others in orders.unbind(dim=1):  # (K,)
            column = others[:, None]
            conflict = current.gather(1, column).clamp_max_(0)
            removed.scatter_(1, column, conflict)
            current.addcmul_(conflict, coef.index_select(0, others), value=-1)
        return 1 - removed.sum(dim=0), state.replace(draws=state.draws + 1)
