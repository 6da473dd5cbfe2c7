"""UW: weigh the losses by learnt uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.errors import SpecError, unknown_name
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["UW"]


@register_method("uw")
class UW(GradientAggregator):
    r"""Weigh every loss by the inverse of a learnt variance (uncertainty weighting).

    .. math:: \sum_k \Big( \frac{1}{c_k\, \sigma_k^2} L_k + \log \sigma_k \Big), \qquad
        c_k = 2, \text{ or } 1 \text{ for classification}

    The log-variances :math:`s_k = \log \sigma_k^2` are parameters of the method, zero at first and
    trained by the user's optimizer. At rest :math:`\sigma_k^2 = 2 L_k / c_k`, so that each weight is
    :math:`1/(2 L_k)`: the method minimises half the sum of the log-losses (compare ``si``).

    Needs: owned parameters (add ``method.parameters()`` to the optimizer).

    Differences: the paper's factor is 1/2 for a Gaussian likelihood (squared error) and 1 for a
    softmax (cross-entropy); LibMTL and TorchJD use 1/2 for all, as here without ``classification``.
    LibMTL starts at :math:`s_k = -1/2`.

    Args:
        classification: names of the tasks whose loss is a cross-entropy.
    """

    paper = (
        "Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and "
        "Semantics, CVPR 2018"
    )
    year = 2018
    # no value of a loss enters, but which tasks have labels on some process does
    uses_losses = True

    _factors: Tensor

    def __init__(self, tasks: Tasks, *, classification: Sequence[str] = (), **common: Any) -> None:
        super().__init__(tasks, **common)
        self.classification = classification
        if isinstance(classification, str):
            raise SpecError(
                f"classification of uw must be a list of task names, not the word {classification!r}; "
                f"write [{classification}]"
            )
        names = [str(name) for name in classification]
        for name in names:
            if name not in self.tasks:
                raise unknown_name("task", name, self.tasks)
        factors = torch.tensor([1.0 if name in names else 0.5 for name in self.tasks])
        self.register_buffer("_factors", factors, persistent=False)
        self.log_variances = nn.Parameter(torch.zeros(len(self.tasks)))

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        r""":math:`1 / (c_k \sigma_k^2)`."""
        weights = self._factors * torch.exp(-self.log_variances)
        return (weights if step is None else step.pick(weights)).to(losses.dtype)

    def loss_penalty(self, losses: Tensor, step: Any = None) -> Tensor:
        r"""The sum of :math:`\log \sigma_k`."""
        present = self.log_variances if step is None else step.pick(self.log_variances)
        return 0.5 * present.sum().to(losses.dtype)

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """Own parameters, so that DDP finds them in use at the end of the forward pass."""
        return (self.log_variances,)

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """None: their gradient comes from the total."""
        return (None,)
