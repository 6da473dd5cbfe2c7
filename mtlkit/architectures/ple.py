"""PLE, progressive layered extraction, and its one level CGC, customized gate control."""

from typing import Any

from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.experts import MixtureOfExperts, mix_all, run_experts
from mtlkit.config import Count, register_architecture


@register_architecture("ple")
class Ple(MixtureOfExperts):
    r"""Levels of shared and task-specific experts, which separate step by step.

    On every level the gate of task :math:`k` mixes its own experts and the shared ones. A shared gate
    mixes all experts for the shared experts of the next level (the last level has no shared gate). So
    the experts of a task on a lower level serve all tasks, and are trained by all.

    The fork is at the outputs of the last level's shared experts and the mixtures that enter this level;
    a task reads the former, and its own of the latter. With one level this is CGC.

    Args:
        levels: number of extraction levels.
        shared_experts: number of shared experts on every level.
        task_experts: number of experts that every task has on every level.
        expert: ``mlp(64)`` or ``mlp(64, 32)``.
    """

    paper = "Tang et al., Progressive Layered Extraction (PLE), RecSys 2020"
    year = 2020

    def __init__(
        self,
        tasks: Tasks,
        *,
        levels: Count = 2,
        shared_experts: Count = 2,
        task_experts: Count = 2,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.levels = levels
        self.shared_experts = nn.ModuleList()
        self.task_experts = nn.ModuleList()
        self.task_gates = nn.ModuleList()
        self.shared_gates = nn.ModuleList()
        every = shared_experts + len(self.tasks) * task_experts
        for level in range(levels):
            vectors = None if level == 0 else self.expert_dim
            size = self.input_dim if level == 0 else self.expert_dim
            self.shared_experts.append(self.make_experts(shared_experts, vectors))
            self.task_experts.append(
                self.by_task({t: self.make_experts(task_experts, vectors) for t in self.tasks})
            )
            mixed = shared_experts + task_experts
            self.task_gates.append(
                self.by_task({t: nn.Linear(size, mixed, bias=False) for t in self.tasks})
            )
            if level < levels - 1:
                self.shared_gates.append(nn.Linear(size, every, bias=False))
        self.finish(method)

    def encode(self, inputs: Any) -> tuple[Any, Tensor]:
        """Return what enters the last level, and the outputs (B, n, d) of its shared experts."""
        below = self.bottom(inputs)
        start = inputs if below is None else below
        shared: Any = start
        own: dict[str, Any] = dict.fromkeys(self.tasks, start)
        for level in range(self.levels - 1):
            common = run_experts(self.shared_experts[level], shared)
            special = {
                task: run_experts(self._own(self.task_experts, level, task), own[task])
                for task in self.tasks
            }
            gate = self.shared_gates[level](shared.flatten(1)).softmax(dim=1)
            shared = mix_all(gate, [*special.values(), common])
            own = {
                task: self._mixture(level, task, own[task], special[task], common) for task in self.tasks
            }
        outputs = run_experts(self.shared_experts[-1], shared)
        return (below if self.levels == 1 else tuple(own.values())), outputs

    def predict(self, task: str, shared: tuple[Any, Tensor], inputs: Any) -> Any:
        """Return the head's output on the task's mixture of the last level."""
        entering, common = shared
        if self.levels == 1:
            own = inputs if entering is None else entering
        else:
            own = entering[self.tasks.index(task)]
        special = run_experts(self._own(self.task_experts, -1, task), own)
        return self.head(task)(self._mixture(self.levels - 1, task, own, special, common))

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return experts and gate of the last level, and the head."""
        experts = self._own(self.task_experts, -1, task)
        return [experts, self._own(self.task_gates, -1, task), self.head(task)]

    def _own(self, levels: nn.ModuleList, level: int, task: str) -> nn.Module:
        return self.of_task(levels[level], task)

    def _mixture(self, level: int, task: str, own: Any, special: Tensor, common: Tensor) -> Tensor:
        gate = self._own(self.task_gates, level, task)(own.flatten(1)).softmax(dim=1)
        return mix_all(gate, [special, common])


@register_architecture("cgc")
class Cgc(Ple):
    """Shared experts and experts of each task; the gate of a task mixes its own and the shared ones.

    One level of PLE. The fork is at the outputs of the shared experts and the features of the backbone,
    which the tasks' own experts and gates read.

    Args:
        shared_experts: number of shared experts.
        task_experts: number of experts that every task has.
        expert: ``mlp(64)``, ``mlp(64, 32)``, or a backbone such as ``timm.resnet18``, which reads the
            inputs.
    """

    hidden_options = frozenset({"levels"})

    def __init__(self, tasks: Tasks, **options: Any) -> None:
        super().__init__(tasks, levels=1, **options)
