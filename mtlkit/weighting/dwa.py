"""DWA: dynamic weight average."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Gt, LogUniform, register_method
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import relative_losses, softmax_weights


@register_method("dwa")
class DWA(GradientAggregator):
    r"""Give more weight to the tasks whose losses fall more slowly.

    .. math:: w_k(t) = K \frac{\exp(r_k(t-1) / T)}{\sum_i \exp(r_i(t-1) / T)}, \qquad
        r_k(t-1) = \frac{L_k(t-1)}{L_k(t-2)}

    where t counts windows of ``window`` steps and :math:`L_k(t)` is the task's mean loss in window t.
    A task that has not yet seen two full windows has the rate 1, as in the paper, and so has one
    whose older loss is zero. The losses should keep their sign. Steps without a task's labels do not
    count in its window.

    Update scale: at equal rates every loss has the factor 1; the factors always sum to K.

    Differences: in the paper, the authors' code, LibMTL and TorchJD a window is an epoch. It is one here
    too under the :class:`~mtlkit.Trainer`, which knows how many batches an epoch has. In your own loop,
    set ``window`` to that number; otherwise the equation is applied at every step, noise included.

    Args:
        temperature: T; larger values make the weights more equal. 2 in the paper, LibMTL and TorchJD.
        window: number of steps over which a loss is averaged; by default an epoch of the Trainer, or one
            step in your own loop.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> method = mtlkit.create_method("dwa(window=1)", tasks=2)
        >>> for losses in ([1.0, 1.0], [1.0, 0.5], [1.0, 0.25]):  # the second task learns faster
        ...     merged = method.combine(grads, torch.tensor(losses))
        >>> merged
        tensor([1.3731, 0.8756])
    """

    paper = "Liu et al., End-to-End Multi-Task Learning with Attention, CVPR 2019"
    url = "https://arxiv.org/abs/1803.10704"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"temperature": LogUniform(0.5, 5.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        temperature: Annotated[float, Gt(0)] = 2.0,
        window: Annotated[int, Ge(1)] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.temperature = temperature
        self.window = window
        self.epoch_batches = 1
        self.add_state("loss_sum", 0.0)
        self.add_state("counted", 0)
        self.add_state("newer", 0.0)
        self.add_state("older", 0.0)

    def set_epoch_length(self, batches: int) -> None:
        """Average over an epoch of this many batches, unless ``window`` says otherwise."""
        self.epoch_batches = batches

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        rates = relative_losses(state.newer, state.older)  # `older` is zero before two full windows
        weights = softmax_weights(rates, self.temperature)
        loss_sum, counted = state.loss_sum + losses.double(), state.counted + 1
        full = counted >= (self.window or self.epoch_batches)
        return weights, state.replace(
            older=torch.where(full, state.newer, state.older),
            newer=torch.where(full, loss_sum / counted, state.newer),
            loss_sum=torch.where(full, 0.0, loss_sum),
            counted=torch.where(full, 0, counted),
        )
