"""Cross-stitch networks: one network per task, whose features are mixed between stages."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.heads import build_heads
from mtlkit.architectures.stages import build_stages, join_streams, joint_features, split_streams
from mtlkit.config import Gt, Le, register_architecture


class _Stitch(nn.Module):
    """The input of one task's next stage: a linear combination of the features of all networks."""

    def __init__(self, tasks: int, own: int, same: float) -> None:
        super().__init__()
        others = (1 - same) / max(1, tasks - 1)
        weights = torch.full((tasks,), others)
        weights[own] = same if tasks > 1 else 1.0
        self.weights = nn.Parameter(weights)

    def forward(self, streams: Sequence[Tensor]) -> Tensor:
        mixed = self.weights[0] * streams[0]
        for weight, stream in zip(self.weights[1:], streams[1:], strict=True):
            mixed = mixed + weight * stream
        return mixed


@register_architecture("cross_stitch")
class CrossStitch(Architecture):
    r"""A network per task; after every stage each reads a learned mixture of the features of all.

    :math:`x_k \leftarrow \sum_j \alpha_{kj} x_j`; :math:`\alpha_{kk}` is initially ``same``, and the
    others are equal, of sum ``1 - same``.

    Every task has its own network, so there are no shared features at which gradients could be merged.
    Methods merge the gradients of the parameters instead (``wrt=parameters``), or ``fork=streams`` forks
    the features of all K networks before the last cross-stitch unit, which mixes them for each task. All
    weights except those of this last unit and of the heads count as shared.

    Args:
        backbone: ``timm.<model>(...)``, ``mlp(64, 32, inputs=10)``, or an ``nn.Sequential`` of stages.
        heads: ``linear``, ``mlp(50)``, ``conv(64)``, a module, a factory, or a mapping from task to
            these.
        same: initial weight of a task's own network in its mixture.
        fork: ``none``, or ``streams``.
        input_size: shape of one sample, if the backbone does not declare its features.
    """

    paper = "Misra et al., Cross-stitch Networks for Multi-task Learning, CVPR 2016"
    year = 2016
    fork_hint = (
        "cross_stitch(fork=streams), which merges at the features of all networks before the last unit"
    )

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any = "timm.resnet18",
        heads: Any = "linear",
        same: Annotated[float, Gt(0), Le(1)] = 0.9,
        fork: Literal["none", "streams"] = "none",
        input_size: int | Sequence[int] | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        count = len(self.tasks)
        nets, found = build_stages(backbone, count, input_size)
        self.nets = self.by_task(dict(zip(self.tasks, nets, strict=True)))
        self.stitches = nn.ModuleList(
            nn.ModuleList(_Stitch(count, own, same) for own in range(count)) for _ in nets[0]
        )
        self.heads = self.by_task(build_heads(heads, found.dim, self.outputs, default="linear"))
        self._kind = found.kind
        self.forks = fork == "streams"
        self.features = joint_features(found) if self.forks else None
        self.set_method(method)

    def encode(self, inputs: Any) -> Any:
        """Return the features of the K networks before the last unit."""
        streams = [inputs] * len(self.tasks)
        nets = list(self.nets.values())
        depth = len(self.stitches)
        for level in range(depth):
            streams = [
                net[level](stream)  # type: ignore[index]
                for net, stream in zip(nets, streams, strict=True)
            ]
            if level < depth - 1:
                streams = [stitch(streams) for stitch in self.stitches[level]]  # type: ignore[attr-defined]
        return join_streams(streams) if self.forks else streams

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """Return the head's output on the task's last mixture."""
        streams = split_streams(shared, len(self.tasks), self._kind) if self.forks else shared
        mixed = self.stitches[-1][self.tasks.index(task)](streams)  # type: ignore[index]
        return self.head(task)(mixed)

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return the task's row of the last unit, and the head."""
        row = self.stitches[-1][self.tasks.index(task)]  # type: ignore[index]
        return [row, self.head(task)]
