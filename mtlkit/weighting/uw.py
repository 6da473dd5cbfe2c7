"""UW: weigh the losses by learned uncertainty."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.errors import unknown_name
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("uw")
class UW(GradientAggregator):
    r"""Weigh every loss by the inverse of a learned variance (uncertainty weighting).

    .. math:: \sum_k \Big( \frac{1}{c_k\, \sigma_k^2} L_k + \log \sigma_k \Big), \qquad
        c_k = 2, \text{ or } 1 \text{ for classification}

    The log-variances :math:`s_k = \log \sigma_k^2` are parameters of the method: add
    ``method.parameters()`` to the optimizer. They are zero at first. At the optimum :math:`\sigma_k^2 =
    2 L_k / c_k`, so that each weight is :math:`1/(2 L_k)`: the method minimizes half the sum of the
    log-losses (compare ``si``).

    Update scale: every loss has the factor 1/2 at first, or 1 for classification.

    Differences: the paper's factor is 1/2 for a Gaussian likelihood (squared error) and 1 for a
    softmax (cross-entropy). LibMTL and TorchJD use 1/2 for all, as here without ``classification``.
    TorchJD starts at zero too, LibMTL at :math:`s_k = -1/2`, where the first factor is 0.82.

    Args:
        classification: names of the tasks whose loss is a cross-entropy.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("uw", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([0.5000, 0.5000])
    """

    paper = (
        "Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and "
        "Semantics, CVPR 2018"
    )
    url = "https://arxiv.org/abs/1705.07115"
    idea = "Weigh losses: by uncertainty, progress or chance"
    waived_laws = {"single_task": "a loss is weighed by half its inverse variance, also if it is alone"}

    def __init__(self, tasks: Tasks, *, classification: Sequence[str | int] = (), **common: Any) -> None:
        super().__init__(tasks, **common)
        self.classification = classification
        names = [str(name) for name in classification]
        for name in names:
            if name not in self.tasks:
                raise unknown_name("task", name, self.tasks)
        if names:
            reason = "the factors depend on the kind of task"
            self.waived_laws = {**self.waived_laws, "permutation": reason}
        self.add_constant("factors", [1.0 if name in names else 0.5 for name in self.tasks])
        self.add_learned("log_variances", 0.0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        return state.factors * torch.exp(-state.log_variances), state

    def loss_penalty(self, losses: Tensor, state: State) -> Tensor | None:
        penalty: Tensor = 0.5 * state.log_variances.sum()
        return penalty
