"""The RotoGrad paper's loss normalization."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, register_method
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("normalize")
class Normalize(GradientAggregator):
    r"""Divide every loss by its first value, and from step ``burn_in`` on by the value at that step.

    .. math:: L_k \leftarrow L_k / |L_k^{ref}|

    (appendix C.1 of the paper: losses that fall quickly at first would otherwise become too small). A
    reference is never zero: the first nonzero loss is taken. Each task counts the steps in which it is
    present.

    Update scale: every loss L has the factor :math:`1/|L|` at first.

    Differences: the authors' package (rotograd 0.1.6) divides by the reference with its sign, and takes
    it again one step later: its period of 20 is ``burn_in=21``. There the division is off by default.
    LibMTL and TorchJD do not have it.

    Args:
        burn_in: the step, counted from 1, at which the references are taken again; 0 keeps the first.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("normalize", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1.7500, 0.2500])
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    url = "https://arxiv.org/abs/2103.02631"
    idea = "Homogenize sizes and directions (RotoGrad)"
    uses_losses = True

    def __init__(self, tasks: Tasks, *, burn_in: Annotated[int, Ge(0)] = 20, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.burn_in = burn_in
        self.add_state("reference", 0.0)
        self.add_state("seen", 0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        renew = state.reference == 0
        if self.training:
            renew = renew | (state.seen + 1 == self.burn_in)
        reference = torch.where(renew, losses.abs().double(), state.reference)
        weights = 1 / torch.where(reference == 0, 1.0, reference)
        return weights, state.replace(reference=reference, seen=state.seen + 1)
