"""GLS: the geometric mean of the losses."""

import torch
from torch import Tensor

from mtlkit.config import methods, register_method
from mtlkit.method import State
from mtlkit.weighting._forms.losses import log_losses
from mtlkit.weighting._forms.scalarization import Scalarization


@register_method("gls")
class GLS(Scalarization):
    r"""Minimize the geometric mean of the losses.

    .. math:: f = \Big( \prod_k L_k \Big)^{1/K} = \exp\Big( \frac1K \sum_k \log L_k \Big), \qquad
        w_k = \frac{f}{K L_k}

    It is computed in logarithms, so a thousand tasks neither overflow nor underflow. The losses must be
    positive. A loss of zero takes no part in the step (the product would be zero, and its gradient
    undefined); a negative one makes the total NaN. ``geometric_mean`` is another name for it.

    Update scale: at equal losses every loss has the factor 1/K.

    Differences: the paper also proposes to raise the losses of focused tasks to a power; this is its
    plain form. LibMTL multiplies the losses themselves, which is NaN for many small ones. TorchJD, too,
    takes logarithms; a loss of zero gives NaN gradients there.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("gls", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1.7500, 0.2500])
    """

    paper = (
        "Chennupati et al., MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy "
        "for Multi-Task Learning, CVPR Workshops 2019"
    )
    url = "https://arxiv.org/abs/1904.08492"
    idea = "Weigh losses: by uncertainty, progress or chance"

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        logs, active = log_losses(losses)
        count = active.sum().clamp(min=1)
        mean = logs.sum() / count
        derivatives = torch.where(active, torch.exp(mean - logs) / count, 0.0)
        return torch.where(active.any(), torch.exp(mean), 0.0), derivatives


methods.alias("geometric_mean", "gls")
