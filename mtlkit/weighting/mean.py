"""Mean of the task gradients."""

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.method import GradientAggregator, State


@register_method("mean")
class Mean(GradientAggregator):
    r"""Average the task gradients.

    .. math:: g = \frac1K \sum_k G_k

    over the K tasks that are present. Only the shared layers see the factor: each head still follows its
    own loss in full.

    Update scale: K identical gradients g merge to g. LibMTL's EW is not the mean but the sum.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("mean", tasks=2).combine(grads)
        tensor([0.5000, 0.5000])
    """

    idea = "No intervention: the baseline of every comparison"
    reads_gram = False

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.full_like(gram[0], 1 / len(gram)), state
