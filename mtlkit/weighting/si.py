"""SI: scale-invariant losses."""

from torch import Tensor

from mtlkit.config import register_method
from mtlkit.method import State
from mtlkit.weighting._forms.losses import inverse_losses, log_losses
from mtlkit.weighting._forms.scalarization import Scalarization


@register_method("si")
class SI(Scalarization):
    r"""Minimize the sum of the logarithms of the losses, whatever their units.

    .. math:: \sum_k \log L_k, \qquad w_k = 1 / L_k

    The gradient does not change when a loss is multiplied by a constant. The losses must be positive: a
    loss of zero takes no part in the step, a negative one makes the total NaN.

    Update scale: every loss L has the factor 1/L.

    Differences: none from the paper's baseline. ``gls`` has the same direction; its length follows the
    losses' geometric mean. LibMTL and TorchJD do not have the method.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("si", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1.7500, 0.2500])
    """

    paper = "Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022 (its SI baseline)"
    url = "https://arxiv.org/abs/2202.01017"
    idea = "Gradient balancing: no task dominates by its size"

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        """Return inverse losses; a negative loss gives NaN for its own task alone."""
        return inverse_losses(losses), state

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        logs, _ = log_losses(losses)
        return logs.sum(), inverse_losses(losses)
