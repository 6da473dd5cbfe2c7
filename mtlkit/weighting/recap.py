"""RECAP: weigh losses by their recent convergence and instability."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Gt, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import relative_losses, softmax_weights


@register_method("recap")
class RECAP(GradientAggregator):
    r"""Give more weight to losses that still change, and less to those that are saturated.

    .. math:: w = K \operatorname{softmax}\Big(\frac{c + i}{T}\Big), \qquad
        c_k = \frac{\mu'_k}{\mu_k}, \qquad i_k = \frac{\sigma_k}{\mu_k + \mu'_k}

    with the mean :math:`\mu_k` of the task's last W losses, the mean :math:`\mu'_k` of the W losses
    before, and the standard deviation :math:`\sigma_k` of all 2W. Both windows end before the current
    step and move on with every step. A task that has not yet seen 2W steps counts as one whose loss is
    constant (c = 1, i = 0), so that all weights are one in the first 2W steps. Steps without a task's
    labels do not move its windows.

    Update scale: in the first 2W steps every loss has the factor 1; the factors always sum to K.

    Differences: the paper reweighs objectives of reinforcement learning and replayed supervised losses;
    the replay itself is a matter of the data. A quotient by a mean of zero is 1 for c and 0 for i. The
    standard deviation divides by 2W. We found no code by the authors. LibMTL and TorchJD do not have the
    method.

    Args:
        window: W, number of losses in a window.
        temperature: T; larger values make the weights more equal.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("recap(window=1, temperature=1)", 2)
        >>> for values in ((4.0, 2.0), (2.0, 2.0), (1.0, 2.0)):
        ...     losses = [torch.tensor(value, requires_grad=True) for value in values]
        ...     method.total(losses).backward()
        >>> [round(loss.grad.item(), 2) for loss in losses]  # c = 2 and 1, i = 1/6 and 0
        [1.53, 0.47]
    """

    paper = (
        "Phan et al., Beyond Reasoning Gains: Mitigating General Capabilities Forgetting in Large "
        "Reasoning Models, arXiv 2510.21978, 2025"
    )
    url = "https://arxiv.org/abs/2510.21978"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"window": Choice(5, 10, 20, 50), "temperature": LogUniform(0.2, 20.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        window: Annotated[int, Ge(1)] = 10,
        temperature: Annotated[float, Gt(0)] = 5.0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.window = window
        self.temperature = temperature
        self.add_state("history", 0.0, size=2 * window)
        self.add_state("seen", 0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        history = state.history  # (P, 2W), the newest loss last
        older, newer = history.unflatten(1, (2, self.window)).mean(dim=2).unbind(dim=1)
        c = relative_losses(older, newer)
        i = safe_divide(history.std(dim=1, correction=0), newer + older)
        known = state.seen >= 2 * self.window
        signal = torch.where(known, c + i, 1.0)
        weights = softmax_weights(signal, self.temperature)
        moved = torch.cat([history[:, 1:], losses.double()[:, None]], dim=1)
        return weights, state.replace(history=moved, seen=state.seen + 1)
