"""IGB: balance the improvable gaps of the tasks."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, register_method
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import inverse_losses, relative_losses, softmax_weights


@register_method("igb")
class IGB(GradientAggregator):
    r"""Minimize the log-losses, with more weight on losses that have fallen less.

    .. math:: \sum_k w_k \log L_k, \qquad
        w = K \operatorname{softmax}\Big( \frac{L}{L^0} \Big)

    with w held constant, so that the factor of a loss is :math:`w_k / L_k`. The base :math:`L^0_k` is
    the task's mean loss in the window number ``base`` (IGBv1 of the paper). Until it is known for a
    task, the task's ratio is 1, so all :math:`w_k` are 1 at first: then the method is ``si``. The losses
    must be positive: a loss of zero takes no part in the step, a negative one makes the total NaN. The
    value of the total is the sum of the :math:`w_k`, that is K.

    Update scale: every loss L has the factor 1/L at first.

    Differences: in the authors' code a window is an epoch, and the base is the second one. It is one
    here too under the :class:`~mtlkit.Trainer`, which knows how many batches an epoch has. In your own
    loop, set ``window`` to that number. The paper's IGBv2, which learns the weights by reinforcement
    learning, is not included. LibMTL and TorchJD do not have the method.

    Args:
        base: which window gives the base losses, counted from 1.
        window: number of steps over which a loss is averaged; by default an epoch of the Trainer, or one
            step in your own loop.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("igb(base=1)", 2)
        >>> for values in ((4.0, 2.0), (2.0, 2.0)):
        ...     losses = [torch.tensor(value, requires_grad=True) for value in values]
        ...     method.total(losses).backward()
        >>> [round(loss.grad.item(), 3) for loss in losses]  # 2 softmax(0.5, 1) / 2
        [0.378, 0.622]
    """

    paper = "Dai et al., Improvable Gap Balancing for Multi-Task Learning, UAI 2023"
    url = "https://arxiv.org/abs/2307.15429"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"base": Choice(1, 2, 3)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        base: Annotated[int, Ge(1)] = 2,
        window: Annotated[int, Ge(1)] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.base = base
        self.window = window
        self.epoch_batches = 1
        self.add_state("loss_sum", 0.0)
        self.add_state("seen", 0)
        self.add_state("base_losses", 0.0)

    def set_epoch_length(self, batches: int) -> None:
        """Average over an epoch of this many batches, unless ``window`` says otherwise."""
        self.epoch_batches = batches

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        exact = losses.double()
        ratios = relative_losses(exact, state.base_losses)  # 1 until the base is known
        weights = softmax_weights(ratios) * inverse_losses(losses)
        window = self.window or self.epoch_batches
        seen = state.seen + 1
        counts = (seen > (self.base - 1) * window) & (seen <= self.base * window)
        loss_sum = torch.where(counts, state.loss_sum + exact, state.loss_sum)
        base = torch.where(seen == self.base * window, loss_sum / window, state.base_losses)
        return weights, state.replace(loss_sum=loss_sum, seen=seen, base_losses=base)
