"""Cross-stitch networks: one network per task, whose features are mixed between stages."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.stages import StagedNets, weighted_sum
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
        return weighted_sum(self.weights, streams)


@register_architecture("cross_stitch")
class CrossStitch(StagedNets):
    r"""A network per task; after every stage each reads a learned mixture of the features of all.

    :math:`x_k \leftarrow \sum_j \alpha_{kj} x_j`; :math:`\alpha_{kk}` is initially ``same``, and the
    others are equal, of sum ``1 - same``.

    Every task has its own network, so there are no shared features at which gradients could be merged.
    Methods merge the gradients of the parameters instead (``wrt=parameters``), or ``fork=streams`` forks
    the features of all K networks before the last cross-stitch unit, which mixes them for each task. All
    weights except those of this last unit and of the heads count as shared.

    Args:
        same: initial weight of a task's own network in its mixture.
        fork: ``none``, or ``streams``.
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
        same: Annotated[float, Gt(0), Le(1)] = 0.9,
        fork: Literal["none", "streams"] = "none",
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        count = len(self.tasks)
        nets = self.make_nets(count)
        self.nets = self.by_task(dict(zip(self.tasks, nets, strict=True)))
        self.stitches = nn.ModuleList(
            nn.ModuleList(_Stitch(count, own, same) for own in range(count)) for _ in nets[0]
        )
        self.finish(fork == "streams", method)

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
        return self.join(streams)

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """Return the head's output on the task's last mixture."""
        last, head = self.task_modules(task)
        return head(last(self.split(shared, len(self.tasks))))

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return the task's row of the last unit, and the head."""
        row = self.stitches[-1][self.tasks.index(task)]  # type: ignore[index]
        return [row, self.head(task)]
