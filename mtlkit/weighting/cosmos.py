"""COSMOS: a linear scalarization with a cosine penalty."""

from typing import Annotated, Any

from torch import Tensor

from mtlkit.config import Ge, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.scalarization import PreferredScalarization


@register_method("cosmos")
class COSMOS(PreferredScalarization):
    r"""Minimize a weighted sum of the losses, and keep the loss vector in the preferred direction.

    .. math:: f = \sum_k r_k L_k - \lambda \cos(r, L), \qquad
        w_k = r_k - \lambda \Big( \frac{r_k}{\|r\| \|L\|}
        - \frac{\langle r, L \rangle L_k}{\|r\| \|L\|^3} \Big)

    The preference r is normalized to sum to one over the present tasks. A weight is negative where a
    loss is smaller than its preference asks for. Where all losses are zero, the penalty has no gradient.

    Update scale: at equal losses and an equal preference every loss has the factor 1/K.

    Differences: the paper draws a new r for each batch and gives it to the network as an input, to
    learn the whole Pareto front; that is up to the model. Here r is fixed, or set before a step by
    :meth:`set_preference`. LibMTL does not have the method.

    Args:
        penalty: :math:`\lambda`, in the units of the losses. The default is the authors'; their
            settings are 0.01 to 8 by data set. TorchJD has no default.
        preference: numbers r of zero or more, one per task or by name; equal by default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("cosmos", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([-0.0448,  0.5605])
    """

    paper = (
        "Ruchte and Grabocka, Scalable Pareto Front Approximation for Deep Multi-Objective Learning, "
        "ICDM 2021"
    )
    url = "https://arxiv.org/abs/2103.12880"
    idea = "A chosen point of the Pareto front"
    waived_laws = {
        "scale": "the penalty has no units and the losses have: their balance changes with the scale"
    }
    search_space = {"penalty": LogUniform(0.01, 8.0)}

    def __init__(self, tasks: Tasks, *, penalty: Annotated[float, Ge(0)] = 2.0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.penalty = penalty

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        preference = safe_divide(state.weighting, state.weighting.sum())
        exact = losses.double()
        length = exact.norm()
        direction = safe_divide(preference, preference.norm())
        unit = safe_divide(exact, length)
        cosine = direction @ unit
        derivatives = preference - self.penalty * safe_divide(direction - cosine * unit, length)
        return preference @ exact - self.penalty * cosine, derivatives
