"""LDC-MTL: learned weights that keep the weighted losses together."""

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mtlkit.config import LR_RATIO, Ge, LogUniform, register_method
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("ldc")
class LDC(GradientAggregator):
    r"""Learn weights with the network, and penalize differences between the weighted losses.

    .. math:: \sum_k w_k \tilde L_k + \lambda \sum_{k < K}
        \big| w_k \tilde L_k - w_{k+1} \tilde L_{k+1} \big|, \qquad
        w = \operatorname{softmax}(\theta), \qquad \tilde L_k = L_k / L_k^0

    where neighbors in task order are compared, and :math:`L_k^0` is the task's first loss that is not
    zero. The :math:`\theta_k` are parameters of the method: add ``method.parameters()`` to the
    optimizer. They are zero at first. Between the kinks of the penalty the sum is linear in the losses:
    their factors are

    .. math:: \frac{w_k}{L_k^0} \big( 1 + \lambda (\sigma_k - \sigma_{k-1}) \big), \qquad
        \sigma_k = \operatorname{sign}\big( w_k \tilde L_k - w_{k+1} \tilde L_{k+1} \big), \quad
        \sigma_0 = \sigma_K = 0

    and the value of the total is that of the sum.

    Update scale: every loss L has the factor 1/(K L) in the first step.

    Differences: the paper's bilevel problem (penalty above, weighted sum below) is solved as in the
    authors' code, by one descent on the sum of both. Their weights are a linear layer and a softmax over
    the pooled features for NYUv2 and Cityscapes, clamped to [0.2, 0.8], and free numbers under a sigmoid
    for QM9 and CelebA; here they are free numbers under the softmax, because a method does not see the
    features. Where their weights do not sum to one, the authors divide the weighted sum by that sum,
    except for Cityscapes, whose penalty also compares unweighted losses. They divide by the first losses
    for NYUv2, up to a common factor, and for QM9, where they also take logarithms. LibMTL and TorchJD do
    not have the method.

    Args:
        penalty: :math:`\lambda`. 0.01 to 0.1 in the authors' scripts; above 0.5 the factor of a loss may
            become negative.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("ldc(penalty=0.1)", 2)
        >>> for values in ((4.0, 2.0), (2.0, 2.0)):
        ...     losses = [torch.tensor(value, requires_grad=True) for value in values]
        ...     method.total(losses).backward()
        >>> [round(loss.grad.item(), 4) for loss in losses]  # 0.5 / 4 * 0.9, 0.5 / 2 * 1.1
        [0.1125, 0.275]
    """

    paper = (
        "Xiao et al., LDC-MTL: Balancing Multi-Task Learning through Scalable Loss Discrepancy Control, "
        "arXiv 2502.08585, 2025"
    )
    url = "https://arxiv.org/abs/2502.08585"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    waived_laws = {"permutation": "the penalty compares neighbors in task order"}
    search_space = {"penalty": LogUniform(0.005, 0.2), LR_RATIO: LogUniform(0.05, 2.0)}

    def __init__(self, tasks: Tasks, *, penalty: Annotated[float, Ge(0)] = 0.05, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.penalty = penalty
        self.add_learned("logits", 0.0)
        self.add_state("reference", 0.0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        reference = torch.where(state.reference == 0, losses.abs().double(), state.reference)
        divisor = torch.where(reference == 0, 1.0, reference)
        w = state.logits.double().softmax(dim=0)
        weighted = w.detach() * (losses / divisor)  # all equal in the first step, to the last digit
        sigma = torch.sign(weighted[:-1] - weighted[1:])
        derivatives = 1 + self.penalty * (pad(sigma, (0, 1)) - pad(sigma, (1, 0)))
        return w * derivatives / divisor, state.replace(reference=reference)
