"""Hard parameter sharing: one backbone, one head per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtlkit.architectures.backbones import build_backbone
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.heads import build_heads
from mtlkit.config.registry import register_architecture


@register_architecture("hard_sharing")
class HardSharing(Architecture):
    """Any backbone, and a head per task on its features.

    Inputs go to the backbone as they are given: a tensor, a dict or a tuple.

    Args:
        backbone: ``timm.<model>(...)``, ``mlp(64, inputs=10)``, a net of the paper (``lenet``,
            ``lenet_svhn``, ``celeba_conv``, ``resnet18_flat``), or a module.
        heads: ``linear``, ``mlp(50)``, ``conv(64)``, ``identity``, a module, a factory, or a mapping
            from task to these (see :mod:`mtlkit.architectures.heads`).
        features: number of features, for a backbone module that does not declare it.
        input_size: shape of one sample; the number of features is then found by one pass.
    """

    paper = "Caruana, Multitask learning, Machine Learning 28, 1997"
    year = 1997

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any,
        heads: Any = "linear",
        features: int | None = None,
        input_size: int | Sequence[int] | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.backbone, self.features = build_backbone(backbone, features=features, input_size=input_size)
        dim = None if self.features is None else self.features.dim
        self.heads = self.by_task(build_heads(heads, dim, self.outputs, default="linear"))
        self.set_method(method)

    def encode(self, inputs: Any) -> Any:
        """The backbone's features."""
        return self.backbone(inputs)

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """The head's output."""
        return self.head(task)(shared)
