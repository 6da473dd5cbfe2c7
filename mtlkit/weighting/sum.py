"""Plain sum of the task gradients: what autograd does without a method ("vanilla" in tables)."""

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.method import GradientAggregator, State


@register_method("sum")
class Sum(GradientAggregator):
    r"""Add the task gradients: every weight is one.

    .. math:: g = \sum_k G_k

    The call ``method(features)`` is optional; with it, ``method.stats`` is filled as for other methods.

    Update scale: K identical gradients g merge to K g. LibMTL's EW is this sum.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("sum", tasks=2).combine(grads)
        tensor([1., 1.])
    """

    idea = "No intervention: the baseline of every comparison"
    is_plain_sum = True
    reads_gram = False

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.ones_like(gram[0]), state
