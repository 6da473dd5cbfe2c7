"""Hard parameter sharing: one backbone, one head per task."""

from collections.abc import Sequence
from typing import Any

from mtlkit.architectures.backbones import build_backbone
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.heads import build_heads
from mtlkit.config import Count, register_architecture


@register_architecture("hard_sharing")
class HardSharing(Architecture):
    """One backbone that all tasks share, and a head per task on its features.

    Inputs of any type are passed to the backbone unchanged: a tensor, a dict or a tuple.

    Args:
        backbone: ``timm.<model>(...)``, ``mlp(64, inputs=10)``, a net of the paper (``lenet``,
            ``lenet_svhn``, ``celeba_conv``, ``resnet18_flat``), or a module.
        heads: ``linear``, ``mlp(50)``, ``conv(64)``, ``identity``, a module, a factory, or a mapping
            from task to these (see :mod:`mtlkit.architectures.heads`).
        features: number of features, for a backbone module that does not declare it.
        input_size: shape of one sample, to find the number of features by a forward pass.

    >>> import mtlkit
    >>> mtlkit.create_architecture(
    ...     "hard_sharing(backbone=mlp(64, inputs=10), heads=mlp(50))", {"kind": 3, "size": 1}
    ... ).head("kind")
    Head(
      pool=avg, output=none
      (layers): Sequential(
        (0): Linear(in_features=64, out_features=50, bias=True)
        (1): ReLU()
        (2): Linear(in_features=50, out_features=3, bias=True)
      )
    )
    """

    paper = "Caruana, Multitask learning, Machine Learning 28, 1997"
    year = 1997

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any,
        heads: Any = "linear",
        features: Count | None = None,
        input_size: Count | Sequence[Count] | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.backbone, self.features = build_backbone(backbone, features=features, input_size=input_size)
        dim = None if self.features is None else self.features.dim
        self.heads = self.by_task(build_heads(heads, dim, self.outputs))
        self.set_method(method)

    def encode(self, inputs: Any) -> Any:
        """Return the backbone's features."""
        return self.backbone(inputs)
