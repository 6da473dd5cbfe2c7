"""PBI: penalty-based boundary intersection."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.options import Numbers, per_task
from mtlkit.weighting._forms.scalarization import PreferredScalarization


@register_method("pbi")
class PBI(PreferredScalarization):
    r"""Decrease the losses along a preferred direction, and penalize the distance from it.

    .. math:: f = d_1 + \theta d_2, \qquad d_1 = \langle L - z, u \rangle, \qquad
        d_2 = \| L - z - d_1 u \|, \qquad u = r / \|r\|

    .. math:: w = u + \theta \frac{L - z - d_1 u}{d_2}

    A weight is negative where a loss is smaller than its preference asks for.

    Update scale: at equal losses and an equal preference every loss has the factor :math:`1/\sqrt K`.

    Differences: none from the paper. On the preferred direction, where :math:`d_2` has no gradient, its
    subgradient zero is taken; TorchJD adds 1e-12 under the root, which changes small losses. LibMTL does
    not have the method.

    Args:
        theta: weight of the distance; the default is the paper's. TorchJD has no default.
        ideal: the point z, one number per task or by name; zero by default.
        preference: numbers r of zero or more, one per task or by name; equal by default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("pbi", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([-9.8995,  4.2426])
    """

    paper = (
        "Zhang and Li, MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition, IEEE "
        "Transactions on Evolutionary Computation 2007"
    )
    url = "https://doi.org/10.1109/TEVC.2007.892759"
    idea = "A chosen point of the Pareto front"
    search_space = {"theta": LogUniform(0.1, 10.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        theta: Annotated[float, Ge(0)] = 5.0,
        ideal: Numbers | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.theta = theta
        self.ideal = ideal
        self.add_constant("ideal_point", per_task("ideal of pbi", ideal, self.tasks, 0.0))

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        unit = safe_divide(state.weighting, state.weighting.norm())
        above = losses.double() - state.ideal_point
        along = above @ unit
        across = above - along * unit
        distance = across.norm()
        # a residual at rounding level has no direction
        distance = torch.where(distance <= 1e-14 * above.norm(), 0.0, distance)
        return along + self.theta * distance, unit + self.theta * safe_divide(across, distance)
