"""LTB: learning to branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.heads import build_heads
from mtlkit.architectures.stages import build_stages, join_streams, joint_features, split_streams
from mtlkit.errors import SpecError
from mtlkit.registry import register_architecture

SharedRandom = None

__all__ = ["LearningToBranch"]


class _Choice(nn.Module):
    """Which of ``parents`` nodes one node, or one task, takes its input from."""

    logits: Tensor

    def __init__(self, parents: int) -> None:
        super().__init__()
        if parents == 1:  # nothing to learn, and DDP expects a gradient for every parameter
            self.register_buffer("logits", torch.zeros(1), persistent=False)
        else:
            self.logits = nn.Parameter(torch.zeros(parents))

    def parent(self) -> int:
        """The node that is chosen once training is over."""
        return int(self.logits.argmax())

    def forward(
        self,
        outputs: Sequence[Tensor],
        noise: Tensor,
        temperature: Tensor | float,
        warm: Tensor | bool,
    ) -> Tensor:
        """Outputs of the parents, mixed by a draw of the Gumbel-softmax distribution."""
        weights = ((self.logits.log_softmax(dim=0) + noise) / temperature).softmax(dim=0)
        if warm is not False:
            even = torch.full_like(weights, 1 / len(outputs))
            weights = torch.where(torch.as_tensor(warm), even, weights)
        mixed = weights[0].to(outputs[0].dtype) * outputs[0]
        for weight, output in zip(weights[1:], outputs[1:], strict=True):
            mixed = mixed + weight.to(output.dtype) * output
        return mixed


@register_architecture("ltb")
class LearningToBranch(Architecture):
    """A tree of stages over which each task learns its path.

    Every stage of the backbone but the first has several candidate nodes. In training a node reads a
    mixture of all nodes one stage before, drawn from a Gumbel-softmax distribution over its parents
    whose temperature falls with every step; in evaluation it reads its most probable parent alone, and
    nodes on no task's path are not computed. Draws are equal on all processes, and their state is saved
    with the network.

    No single representation is shared: where the tasks part is what is being learned. So methods that
    merge gradients at shared features are refused, unless ``fork=nodes`` is given: then what all tasks
    read are the outputs of all nodes of the last stage, of which each takes its own draw, and gradients
    are merged there, jointly. All nodes and their choices count as shared; a task's last choice and head
    are its own.

    Args:
        backbone: ``timm.<model>(...)``, ``mlp(64, 32, inputs=10)``, or an ``nn.Sequential`` of stages.
        heads: ``linear``, ``mlp(50)``, ``conv(64)``, a module, a factory, or a mapping from task to
            these.
        nodes: candidates at every stage but the first; as many as tasks unless given.
        temperature: that of the first step.
        decay: factor of the temperature per step.
        lowest: the temperature falls no lower.
        warmup: steps in which every node reads the mean of its parents.
        fork: ``none``, or ``nodes``.
        seed: of the draws.
        input_size: shape of one sample, where the backbone does not tell its features.
    """

    paper = "Guo, Lee and Ulbricht, Learning to Branch for Multi-Task Learning, ICML 2020"
    year = 2020

    def __init__(
        self,
        tasks: Tasks,
        *,
        backbone: Any = "timm.resnet18",
        heads: Any = "linear",
        nodes: int | None = None,
        temperature: float = 10.0,
        decay: float = 0.999,
        lowest: float = 0.5,
        warmup: int = 0,
        fork: Literal["none", "nodes"] = "none",
        seed: int = 0,
        input_size: int | Sequence[int] | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        width = len(self.tasks) if nodes is None else nodes
        if width < 1 or temperature <= 0 or lowest <= 0 or not 0 < decay <= 1 or warmup < 0:
            raise SpecError(
                "ltb needs nodes of 1 or more, temperature and lowest above 0, decay above 0 and at "
                f"most 1, warmup 0 or more; got {width}, {temperature}, {lowest}, {decay}, {warmup}"
            )
        self.temperature, self.decay, self.lowest, self.warmup = temperature, decay, lowest, warmup
        nets, found = build_stages(backbone, width, input_size)
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
        self.heads = self.by_task(build_heads(heads, found.dim, self.outputs, default="linear"))
        self.random = SharedRandom(seed)
        self._last = sizes[-1]
        self._kind = found.kind
        self._forks = fork == "nodes"
        self.features = joint_features(found) if self._forks else None
        self.set_method(method)

    def encode(self, inputs: Any) -> Any:
        """Outputs of the last stage's nodes; in evaluation None for those on no path."""
        if not self.training:
            return self._encode_tree(inputs)
        self.random.counter.add_(1)
        outputs = [self.levels[0][0](inputs)]  # type: ignore[index]
        for level, choices in enumerate(self.choices, start=1):
            nodes: Any = self.levels[level]
            outputs = [
                nodes[index](self._draw(choice, outputs, stream=1000 * level + index))
                for index, choice in enumerate(choices.children())
            ]
        return join_streams(outputs) if self._forks else outputs

    def predict(self, task: str, shared: Any, inputs: Any) -> Any:
        """The head's output on the node that the task reads, or on a draw of them in training."""
        outputs = split_streams(shared, self._last, self._kind) if self._forks else shared
        choice = self.task_choices[self._keys[task]]
        if self.training:
            read = self._draw(choice, outputs, stream=self.tasks.index(task))
        else:
            read = outputs[choice.parent()]  # type: ignore[operator]
        return self.heads[self._keys[task]](read)

    def task_modules(self, task: str) -> list[nn.Module]:
        """The task's choice among the last nodes, and the head."""
        return [self.task_choices[self._keys[task]], self.heads[self._keys[task]]]

    def branches(self) -> dict[str, tuple[int, ...]]:
        """The path of every task: the node that it uses at each stage."""
        paths = {}
        for task in self.tasks:
            node = self.task_choices[self._keys[task]].parent()  # type: ignore[operator]
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
        if not self._forks:
            return [outputs.get(node) for node in range(self._last)]
        filler = torch.zeros_like(next(iter(outputs.values())))
        return join_streams([outputs.get(node, filler) for node in range(self._last)])

    def _draw(self, choice: Any, outputs: Sequence[Tensor], stream: int) -> Tensor:
        if len(outputs) == 1:
            return outputs[0]
        uniform = self.random.uniform(len(outputs), stream=stream).clamp(2.0**-25, 1 - 2.0**-24)
        noise = uniform.log().neg().log().neg()
        return choice(outputs, noise, *self._phase())

    def _phase(self) -> tuple[Tensor | float, Tensor | bool]:
        """The temperature of this step, and whether it belongs to the warm-up."""
        counter = self.random.counter
        if readable(counter):
            taken = int(counter)
            return max(self.lowest, self.temperature * self.decay ** (taken - 1)), taken <= self.warmup
        falling = self.temperature * self.decay ** (counter - 1).to(torch.float32)
        return falling.clamp_min(self.lowest), counter <= self.warmup

    def _no_features_message(self, method: str) -> str:
        return (
            f"{super()._no_features_message(method)}; or give ltb(fork=nodes) to merge at the outputs "
            "of all nodes of the last stage"
        )
