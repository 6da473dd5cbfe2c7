"""Fixed weights of the losses."""

from typing import Any

from torch import Tensor

from mtlkit.config import Simplex, register_method
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.options import Numbers, per_task


@register_method("constant")
class Constant(GradientAggregator):
    r"""Weigh the losses by fixed factors.

    .. math:: L = \sum_k c_k L_k, \qquad g = \sum_k c_k G_k

    The loss of each head is weighted too. The gradients are merged by the plain sum.

    Update scale: K identical gradients g merge to :math:`\sum_k c_k\, g`, by default K g. The factor of
    a loss is :math:`c_k`.

    Args:
        weights: finite numbers :math:`c_k`, one per task in task order, or a mapping from task names.
            Tasks that a mapping does not name have 1, as all have by default. TorchJD's ``Constant`` has
            no default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("constant(weights=[2, 1])", tasks=2).combine(grads)
        tensor([3., 1.])
    """

    idea = "No intervention: the baseline of every comparison"
    search_space = {"weights": Simplex()}

    def __init__(self, tasks: Tasks, *, weights: Numbers | None = None, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.weights = weights
        if weights is not None:
            named = dict.fromkeys(("permutation", "absent_task"), "the weights belong to named tasks")
            self.waived_laws = {**named, "single_task": "a single loss is multiplied by its weight"}
        self.add_constant("factors", per_task("weights of constant", weights, self.tasks, 1.0))

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        return state.factors, state
