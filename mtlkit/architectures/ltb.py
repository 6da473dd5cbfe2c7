"""LTB: learning to branch."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.stages import StagedNets, weighted_sum
from mtlkit.config import Count, Ge, Gt, Le, register_architecture
from mtlkit.engine.randomness import uniform


class _Choice(nn.Module):
    """The choice of one node, or one task, among ``parents`` nodes to read."""

    logits: Tensor

    def __init__(self, parents: int) -> None:
        super().__init__()
        if parents == 1:  # nothing to learn, and DDP expects a gradient for every parameter
            self.register_buffer("logits", torch.zeros(1), persistent=False)
        else:
            self.logits = nn.Parameter(torch.zeros(parents))

    def parent(self) -> int:
        """Return the node that is read in evaluation."""
        return int(self.logits.argmax())

    def forward(
        self, outputs: Sequence[Tensor], noise: Tensor, temperature: Tensor, warm: Tensor
    ) -> Tensor:
        """Return the outputs of the parents, mixed by a draw of the Gumbel-softmax distribution."""
        drawn = ((self.logits.log_softmax(dim=0) + noise) / temperature).softmax(dim=0)
        return weighted_sum(torch.where(warm, 1 / len(outputs), drawn), outputs)


@register_architecture("ltb")
class LearningToBranch(StagedNets):
    """A tree of stages over which each task learns its path.

    Every stage of the backbone except the first has several candidate nodes. In training a node reads a
    mixture of all nodes of the previous stage, drawn from a Gumbel-softmax distribution over its parents
    whose temperature falls with every step. In evaluation it reads only its most probable parent, and
    nodes on no task's path are not computed. All processes draw the same, and the counter of the draws
    is saved with the network.

    Where the tasks branch is learned, so there are no shared features at which gradients could be
    merged. Methods merge the gradients of the parameters instead (``wrt=parameters``), or ``fork=nodes``
    forks the outputs of all nodes of the last stage, and each task reads its own draw of them. All nodes
    and their choices count as shared; a task's last choice and head are its own.

    Args:
        nodes: candidates at every stage except the first; None for one per task.
        temperature: temperature of the first step.
        decay: factor of the temperature per step.
        lowest: lower bound of the temperature.
        warmup: number of first steps in which every node reads the mean of its parents.
        fork: ``none``, or ``nodes``.
        seed: seed of the draws.
    """

    paper = "Guo, Lee and Ulbricht, Learning to Branch for Multi-Task Learning, ICML 2020"
    year = 2020
    fork_hint = "ltb(fork=nodes), which merges at the outputs of all nodes of the last stage"
    steps: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        nodes: Count | None = None,
        temperature: Annotated[float, Gt(0)] = 10.0,
        decay: Annotated[float, Gt(0), Le(1)] = 0.999,
        lowest: Annotated[float, Gt(0)] = 0.5,
        warmup: Annotated[int, Ge(0)] = 0,
        fork: Literal["none", "nodes"] = "none",
        seed: int = 0,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        width = len(self.tasks) if nodes is None else nodes
        self.temperature, self.decay, self.lowest, self.warmup = temperature, decay, lowest, warmup
        nets = self.make_nets(width)
        depth = len(nets[0])
        self.levels = nn.ModuleList(
            nn.ModuleList(net[level] for net in (nets[:1] if level == 0 else nets))
            for level in range(depth)
        )
        sizes = [len(level) for level in self.levels]  # type: ignore[arg-type]
        self.choices = nn.ModuleList(
            nn.ModuleList(_Choice(sizes[level - 1]) for _ in range(sizes[level]))
            for level in range(1, depth)
        )
        self.task_choices = self.by_task({task: _Choice(sizes[-1]) for task in self.tasks})
        self.seed = seed
        self.register_buffer("steps", torch.tensor(0))
        self._last = sizes[-1]
        self.finish(fork == "nodes", method)

    def encode(self, inputs: Any) -> Any:
        """Return the outputs of the last stage's nodes; in evaluation None for those on no path."""
        if not self.training:
            return self._encode_tree(inputs)
        self.steps.add_(1)
        outputs = [self.levels[0][0](inputs)]  # type: ignore[index]
        for level, choices in enumerate(self.choices, start=1):
            nodes: Any = self.levels[level]
            outputs = [
                nodes[index](self._draw(choice, outputs, level, index))
                for index, choice in enumerate(choices.children())
            ]
        return self.join(outputs)

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """Return the head's output on the node that the task reads, or on a draw in training."""
        outputs = self.split(shared, self._last)
        choice = self._choice(task)
        if self.training:
            read = self._draw(choice, outputs, len(self.levels), self.tasks.index(task))
        else:
            read = outputs[choice.parent()]
        return self.head(task)(read)

    def task_modules(self, task: str) -> list[nn.Module]:
        """Return the task's choice among the last nodes, and the head."""
        return [self._choice(task), self.head(task)]

    def branches(self) -> dict[str, tuple[int, ...]]:
        """Return the path of every task: the node that it uses at each stage."""
        paths = {}
        for task in self.tasks:
            node = self._choice(task).parent()
            path = [node]
            for choices in reversed(self.choices):
                node = choices[node].parent()  # type: ignore[index]
                path.append(node)
            paths[task] = tuple(reversed(path))
        return paths

    def _encode_tree(self, inputs: Any) -> Any:
        paths = list(self.branches().values())
        outputs: dict[int, Tensor] = {0: self.levels[0][0](inputs)}  # type: ignore[index]
        for level in range(1, len(self.levels)):
            parents = {path[level]: path[level - 1] for path in paths}
            outputs = {
                node: self.levels[level][node](outputs[parent])  # type: ignore[index]
                for node, parent in parents.items()
            }
        filler = torch.zeros_like(next(iter(outputs.values()))) if self.forks else None
        return self.join([outputs.get(node, filler) for node in range(self._last)])

    def _choice(self, task: str) -> _Choice:
        choice = self.of_task(self.task_choices, task)
        assert isinstance(choice, _Choice)
        return choice

    def _draw(self, choice: Any, outputs: Sequence[Tensor], level: int, index: int) -> Tensor:
        """Return what the ``index``-th node of a level reads: a draw of the outputs one level below."""
        parents = len(outputs)
        if parents == 1:
            return outputs[0]
        drawn = uniform(self.seed, self.steps, parents, stream=level, offset=index * parents)
        noise = -(-drawn.clamp(2.0**-25, 1 - 2.0**-24).log()).log()
        cooled = self.temperature * self.decay ** (self.steps - 1).to(torch.float32)
        mixed: Tensor = choice(outputs, noise, cooled.clamp_min(self.lowest), self.steps <= self.warmup)
        return mixed
