"""MMoE: multi-gate mixture of experts."""

from typing import Any

from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.experts import MixtureOfExperts, mix, run_experts
from mtlkit.config import Count, register_architecture


@register_architecture("mmoe")
class MMoE(MixtureOfExperts):
    r"""Every task mixes the same experts by its own softmax gate.

    Task :math:`k` reads :math:`\sum_i \mathrm{softmax}(W_k x)_i\, f_i(x)`. The fork is at the outputs
    (B, n, d) of the experts and the features of the backbone, which the gates read. Rotating the outputs
    of the experts is the same as rotating their mixture.

    Args:
        experts: number of experts.
    """

    paper = "Ma et al., Modeling Task Relationships in Multi-task Learning with MMoE, KDD 2018"
    year = 2018

    def __init__(
        self,
        tasks: Tasks,
        *,
        experts: Count = 4,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.experts = self.make_experts(experts)
        self.gates = self.by_task(
            {task: nn.Linear(self.input_dim, experts, bias=False) for task in self.tasks}
        )
        self.finish(method)

    def encode(self, inputs: Any) -> tuple[Tensor | None, Tensor]:
        """Return the backbone's features, if any, and the outputs of the experts (B, n, d)."""
        below = self.bottom(inputs)
        return below, run_experts(self.experts, inputs if below is None else below)

    def predict(self, task: str, shared: tuple[Tensor | None, Tensor], inputs: Any) -> Any:
        """Return the head's output on the task's mixture."""
        below, outputs = shared
        given = inputs.flatten(1) if below is None else below
        weights = self.of_task(self.gates, task)(given).softmax(dim=1)
        return self.head(task)(mix(weights, outputs))
