"""CGC: customized gate control."""

from typing import Any

from mtlkit.architectures.base import Tasks
from mtlkit.architectures.ple import Ple
from mtlkit.config import register_architecture


@register_architecture("cgc")
class Cgc(Ple):
    """Shared experts and experts of each task; a task mixes its own and the shared ones by its gate.

    One level of PLE. The fork is at the outputs of the shared experts and the features of the backbone,
    which the tasks' own experts and gates read.

    Args:
        shared_experts: number of shared experts.
        task_experts: number of experts that every task has.
        expert: ``mlp(64)``, ``mlp(64, 32)``, or a backbone such as ``timm.resnet18``, which reads the
            inputs.
        backbone: shared network below experts and gates; without it they read the inputs.
        heads: ``linear``, ``mlp(50)``, a module, a factory, or a mapping from task to these.
        input_size: shape of one sample, needed without a backbone.
    """

    hidden_options = frozenset({"levels"})

    def __init__(self, tasks: Tasks, **options: Any) -> None:
        super().__init__(tasks, levels=1, **options)
