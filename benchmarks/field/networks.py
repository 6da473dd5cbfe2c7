"""The networks of the field's setups that only they use.

A plugin: name it under ``plugins`` in a config, or with ``--plugin benchmarks/field/networks.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mtlkit import Architecture, register_architecture

_ELEMENTS = (1, 6, 7, 8, 9)
_BONDS = (1, 2, 3, 4)


@register_architecture("message_passing")
class MessagePassing(Architecture):
    """The network of QM9: edge-conditioned messages, a gated recurrent unit, Set2Set, linear heads.

    The graph is complete: every atom hears of every other one. Its message is multiplied by a matrix
    that a small network makes from their distance and the kind of their bond. Inputs are those of the
    data set ``qm9``; what its package lacks of PyG's features (aromatic, hybridization, number of
    hydrogens, kinds of bonds) is zero.

    It computes what PyG's ``NNConv`` and ``Set2Set`` compute, without a matrix for every pair of atoms:
    these matrices are sums of ``hidden`` fixed ones, which multiply the atoms first.

    Args:
        width: features of an atom, and of the shared representation.
        hidden: width of the network that makes the matrices.
        rounds: how often messages are sent.
    """

    paper = "Gilmer et al., Neural Message Passing for Quantum Chemistry, ICML 2017"
    year = 2017

    def __init__(
        self, tasks: Any, *, width: int = 64, hidden: int = 128, rounds: int = 3, method: Any = "sum"
    ) -> None:
        super().__init__(tasks)
        self.width, self.hidden, self.rounds = width, hidden, rounds
        self.embed = nn.Linear(11, width)
        self.pairs = nn.Linear(1 + len(_BONDS), hidden)
        self.matrices = nn.Linear(hidden, width * width)
        self.keep = nn.Linear(width, width)
        self.update = nn.GRUCell(width, width)
        self.pool = Set2Set(width, steps=3)
        self.join = nn.Linear(2 * width, width)
        self.heads = self.by_task({task: nn.Linear(width, size) for task, size in self.outputs.items()})
        self.features = self.vector_features(width)
        self.set_method(method)

    def encode(self, inputs: Tensor) -> Tensor:
        """Return features (B, width) of molecules (B, 29, 4 or 38)."""
        largest = int((inputs[..., 0] > 0).sum(dim=1).max())  # atoms; the places behind them are empty
        molecules = functional.pad(inputs, (0, 38 - inputs.shape[-1]))[:, :largest]
        numbers, positions, rest, bonds = molecules.split([1, 3, 5, 29], dim=-1)
        bonds = bonds[..., :largest]
        present = numbers[..., 0] > 0  # (B, A)
        edges = self.weigh_pairs(present, positions, bonds)
        elements = numbers == numbers.new_tensor(_ELEMENTS)
        atoms = self.embed(torch.cat([elements, numbers, rest], dim=-1)).relu()  # (B, A, width)
        matrices = torch.cat([self.matrices.weight, self.matrices.bias[:, None]], dim=1)
        matrices = matrices.view(self.width, self.width, -1).transpose(1, 2).flatten(1)
        for _ in range(self.rounds):
            sent = (atoms @ matrices).view(len(atoms), -1, self.width)  # (B, A (hidden + 1), width)
            messages = (edges @ sent + self.keep(atoms)).relu()
            atoms = self.update(messages.flatten(0, 1), atoms.flatten(0, 1)).view_as(messages)
        return self.join(self.pool(atoms, present)).relu()

    def weigh_pairs(self, present: Tensor, positions: Tensor, bonds: Tensor) -> Tensor:
        """Return the factors of the fixed matrices in an atom's mean message, (B, A, A (hidden + 1))."""
        apart = ~torch.eye(present.shape[1], dtype=torch.bool, device=present.device)
        heard = present[:, :, None] & present[:, None, :] & apart
        distance = (positions[:, :, None] - positions[:, None, :]).norm(dim=-1, keepdim=True)
        kind = bonds[..., None] == bonds.new_tensor(_BONDS)
        factors = self.pairs(torch.cat([kind, distance], dim=-1)).relu()
        factors = functional.pad(factors, (0, 1), value=1.0)  # for the bias
        share = heard / heard.sum(dim=-1, keepdim=True).clamp(min=1)
        return (factors * share[..., None]).flatten(2)

    def predict(self, task: str, shared: Tensor, inputs: Any) -> Any:
        """Return the output of the head."""
        return self.head(task)(shared)


class Set2Set(nn.Module):
    """An attention over the atoms that a recurrent cell asks several times (Vinyals et al., 2016)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.LSTMCell(2 * width, width)

    def forward(self, atoms: Tensor, present: Tensor) -> Tensor:
        """Return (B, 2 width) for atoms (B, A, width)."""
        asked = atoms.new_zeros(len(atoms), 2 * atoms.shape[-1])
        state = None
        for _ in range(self.steps):
            state = self.cell(asked, state)
            fit = (atoms @ state[0][..., None])[..., 0].masked_fill(~present, -torch.inf)
            found = fit.softmax(dim=1)[:, None] @ atoms
            asked = torch.cat([state[0], found[:, 0]], dim=1)
        return asked


_WIDTHS = (64, 128, 256, 512, 512)
_DEPTHS = (2, 2, 3, 3, 3)


def _layers(inputs: int, outputs: int, count: int = 1) -> nn.Sequential:
    """Return ``count`` convolutions, each normalized and rectified."""
    made: list[nn.Module] = []
    for index in range(count):
        made += [
            nn.Conv2d(inputs if index == 0 else outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*made)


def _mask(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 1),
        nn.BatchNorm2d(outputs),
        nn.Sigmoid(),
    )


@register_architecture("segnet_mtan")
class SegNetMtan(Architecture):
    """SegNet with MTAN's attention, the network of NYUv2 and Cityscapes.

    At each of the ten levels a task multiplies the shared features by a mask, made from what the level
    reads and from what the task took before. The convolutions that carry a task's features from level to
    level are the same for all tasks; so the tasks share more than features, and gradients are merged in
    the parameters (``wrt=parameters``). As in the field's code, all but the heads counts as shared.

    Args:
        width: factor of all widths, to make a smaller net.
    """

    paper = "Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, CVPR 2019"
    year = 2019
    forks = False

    def __init__(self, tasks: Any, *, width: float = 1.0, method: Any = "sum") -> None:
        super().__init__(tasks)
        widths = [max(1, round(size * width)) for size in _WIDTHS]
        above, below = [3, *widths[:-1]], [widths[0], *widths[:-1]]  # of a level's input and output
        further = [*widths[1:], widths[-1]]
        self.enter = nn.ModuleList(map(_layers, above, widths))
        self.encoder = nn.ModuleList(
            _layers(size, size, depth - 1) for size, depth in zip(widths, _DEPTHS, strict=True)
        )
        self.leave = nn.ModuleList(map(_layers, widths, below))
        self.decoder = nn.ModuleList(
            _layers(size, size, depth - 1) for size, depth in zip(below, _DEPTHS, strict=True)
        )
        self.carry_down = nn.ModuleList(map(_layers, widths, further))
        self.carry_up = nn.ModuleList(map(_layers, widths, below))
        read = [widths[0], *(2 * size for size in widths[1:])]
        self.encoder_masks = self.by_task(
            {task: nn.ModuleList(map(_mask, read, widths)) for task in self.tasks}
        )
        joined = [size + out for size, out in zip(widths, below, strict=True)]
        self.decoder_masks = self.by_task(
            {task: nn.ModuleList(map(_mask, joined, below)) for task in self.tasks}
        )
        first = widths[0]
        self.heads = self.by_task(
            {
                task: nn.Sequential(nn.Conv2d(first, first, 3, padding=1), nn.Conv2d(first, size, 1))
                for task, size in self.outputs.items()
            }
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_normal_(module.weight)
                nn.init.zeros_(module.bias)
        self.set_method(method)

    def encode(self, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the inputs and outputs of the five levels of the encoder, and of the decoder."""
        levels, pooled, x = [], [], inputs
        for enter, block in zip(self.enter, self.encoder, strict=True):
            read = enter(x)
            made = block(read)
            levels.append((read, made))
            x, places = functional.max_pool2d(made, 2, return_indices=True)
            pooled.append((places, made.shape[-2:]))
        for level in reversed(range(len(pooled))):
            places, size = pooled[level]
            read = functional.max_unpool2d(x, places, [2, 2], output_size=size)
            x = self.decoder[level](self.leave[level](read))
            levels.append((read, x))
        return levels

    def predict(self, task: str, shared: list[tuple[Tensor, Tensor]], inputs: Any) -> Any:
        """Return the output of the head on the features that the task takes from all levels."""
        down: Any = self.of_task(self.encoder_masks, task)
        up: Any = self.of_task(self.decoder_masks, task)
        taken: Tensor | None = None
        for level, (read, made) in enumerate(shared[: len(down)]):
            mask = down[level](read if taken is None else torch.cat([read, taken], dim=1))
            taken = functional.max_pool2d(self.carry_down[level](mask * made), 2)
        for level, (read, made) in zip(reversed(range(len(up))), shared[len(down) :], strict=True):
            taken = functional.interpolate(
                taken, size=read.shape[-2:], mode="bilinear", align_corners=True
            )
            mask = up[level](torch.cat([read, self.carry_up[level](taken)], dim=1))
            taken = mask * made
        return self.head(task)(taken)


@register_architecture("celeba_net")
class CelebaNet(Architecture):
    """The network of CelebA: seven convolutions, two linear layers, and a linear head per attribute.

    Args:
        width: factor of all widths, to make a smaller net.
    """

    paper = "Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023"
    year = 2023

    def __init__(self, tasks: Any, *, width: float = 1.0, method: Any = "sum") -> None:
        super().__init__(tasks)
        layers: list[nn.Module] = []
        channels = 3
        for item in (64, "pool", 128, 128, "pool", 256, 256, "pool", 512, 512):
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2))
                continue
            size = max(1, round(item * width))
            layers += [nn.Conv2d(channels, size, 3, padding=1, bias=False), nn.BatchNorm2d(size)]
            layers.append(nn.ReLU(inplace=True))
            channels = size
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        for _ in range(2):
            layers += [nn.Linear(channels, channels, bias=False), nn.BatchNorm1d(channels)]
            layers.append(nn.ReLU(inplace=True))
        self.backbone = nn.Sequential(*layers)
        self.heads = self.by_task(
            {task: nn.Linear(channels, size) for task, size in self.outputs.items()}
        )
        self.features = self.vector_features(channels)
        self.set_method(method)

    def encode(self, inputs: Tensor) -> Any:
        """Return features (B, 512) at full width."""
        return self.backbone(inputs)

    def predict(self, task: str, shared: Tensor, inputs: Any) -> Any:
        """Return the output of the head."""
        return self.head(task)(shared)
