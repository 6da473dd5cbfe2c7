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
        """Features (B, width) of molecules (B, 29, 4 or 38)."""
        molecules = functional.pad(inputs, (0, 38 - inputs.shape[-1]))
        numbers, positions, rest, bonds = molecules.split([1, 3, 5, 29], dim=-1)
        present = numbers[..., 0] > 0  # (B, 29)
        edges = self.weigh_pairs(present, positions, bonds)
        elements = numbers == numbers.new_tensor(_ELEMENTS)
        atoms = self.embed(torch.cat([elements, numbers, rest], dim=-1)).relu()  # (B, 29, width)
        matrices = torch.cat([self.matrices.weight, self.matrices.bias[:, None]], dim=1)
        matrices = matrices.view(self.width, self.width, -1).transpose(1, 2).flatten(1)
        for _ in range(self.rounds):
            sent = (atoms @ matrices).view(len(atoms), -1, self.width)  # (B, 29 (hidden + 1), width)
            messages = (edges @ sent + self.keep(atoms)).relu()
            atoms = self.update(messages.flatten(0, 1), atoms.flatten(0, 1)).view_as(messages)
        return self.join(self.pool(atoms, present)).relu()

    def weigh_pairs(self, present: Tensor, positions: Tensor, bonds: Tensor) -> Tensor:
        """Factors of the fixed matrices in the mean message of an atom, (B, 29, 29 (hidden + 1))."""
        apart = ~torch.eye(present.shape[1], dtype=torch.bool, device=present.device)
        heard = present[:, :, None] & present[:, None, :] & apart
        distance = (positions[:, :, None] - positions[:, None, :]).norm(dim=-1, keepdim=True)
        kind = bonds[..., None] == bonds.new_tensor(_BONDS)
        factors = self.pairs(torch.cat([kind, distance], dim=-1)).relu()
        factors = functional.pad(factors, (0, 1), value=1.0)  # for the bias
        share = heard / heard.sum(dim=-1, keepdim=True).clamp(min=1)
        return (factors * share[..., None]).flatten(2)

    def predict(self, task: str, shared: Tensor, inputs: Any) -> Any:
        """The head's output."""
        return self.head(task)(shared)


class Set2Set(nn.Module):
    """An attention over the atoms that a recurrent cell asks several times (Vinyals et al., 2016)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.LSTMCell(2 * width, width)

    def forward(self, atoms: Tensor, present: Tensor) -> Tensor:
        """Return (B, 2 width) for atoms (B, 29, width)."""
        asked = atoms.new_zeros(len(atoms), 2 * atoms.shape[-1])
        state = None
        for _ in range(self.steps):
            state = self.cell(asked, state)
            fit = (atoms @ state[0][..., None])[..., 0].masked_fill(~present, -torch.inf)
            found = fit.softmax(dim=1)[:, None] @ atoms
            asked = torch.cat([state[0], found[:, 0]], dim=1)
        return asked
