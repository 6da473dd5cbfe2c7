"""MMoE: multi-gate mixture of experts."""

from typing import Annotated, Any

from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.experts import MixtureOfExperts, mix, run_experts
from mtlkit.architectures.features import Features
from mtlkit.config import Ge, register_architecture


@register_architecture("mmoe")
class MMoE(MixtureOfExperts):
    r"""Every task mixes the same experts by a softmax gate of its own.

    Task :math:`k` reads :math:`\sum_i \mathrm{softmax}(W_k x)_i\, f_i(x)`. The fork is at the experts'
    outputs (B, n, d) and the features of the backbone, which the gates read. Rotating the experts'
    outputs is the same as rotating their mixture.

    Args:
        experts: number of experts.
        expert: ``mlp(64)``, ``mlp(64, 32)``, or a backbone such as ``timm.resnet18``, which reads the
            inputs.
        backbone: shared network below experts and gates; without it they read the inputs.
        heads: ``linear``, ``mlp(50)``, a module, a factory, or a mapping from task to these.
        input_size: shape of one sample, needed without a backbone.
    """

    paper = "Ma et al., Modeling Task Relationships in Multi-task Learning with MMoE, KDD 2018"
    year = 2018

    def __init__(
        self,
        tasks: Tasks,
        *,
        experts: Annotated[int, Ge(1)] = 4,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.experts = self.make_experts(experts)
        gates: dict[str, nn.Module] = {
            task: nn.Linear(self.input_dim, experts, bias=False) for task in self.tasks
        }
        self.gates = self.by_task(gates)
        self.make_heads()
        self.features = Features("tokens", self.expert_dim)
        self.set_method(method)

    def encode(self, inputs: Any) -> tuple[Tensor | None, Tensor]:
        """Features of the backbone, if any, and the experts' outputs (B, n, d)."""
        below = self.bottom(inputs)
        return below, run_experts(self.experts, inputs if below is None else below)

    def predict(self, task: str, shared: tuple[Tensor | None, Tensor], inputs: Any) -> Any:
        """The head's output on the task's mixture."""
        below, outputs = shared
        given = inputs.flatten(1) if below is None else below
        weights = self.of_task(self.gates, task)(given).softmax(dim=1)
        return self.head(task)(mix(weights, outputs))

    def task_modules(self, task: str) -> list[nn.Module]:
        """Gate and head."""
        return [self.of_task(self.gates, task), self.head(task)]
