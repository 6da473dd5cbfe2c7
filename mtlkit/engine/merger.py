"""Protocol of a method, as the junctions see it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mtlkit.engine.processes import Processes
from mtlkit.engine.replicas import LoneTraining
from mtlkit.engine.step import Step

Leaves = list[Tensor | None]


class Forker(Protocol):
    """A part of a method that gives every task a view of its own."""

    def fork(self, features: list[Tensor]) -> list[list[Tensor]]:
        """What each task is given."""

    def pull_back(self, grads: dict[int, Leaves]) -> dict[int, Leaves]:
        """Gradients with respect to the features from those with respect to what was given."""


class Merger(Protocol):
    """A method, as the junctions see it."""

    tasks: tuple[str, ...]
    roles: frozenset[str]
    shared: list[Tensor] | None
    wrt_parameters: bool
    lone: LoneTraining

    @property
    def fork_part(self) -> Forker | None:
        """The part that forks; None if every task is given the features as they are."""

    @property
    def is_sum(self) -> bool:
        """Whether autograd's own sum of the gradients is the merge."""

    @property
    def processes(self) -> Processes:
        """The processes that share a step."""

    def merge_step(self, step: Step) -> Leaves:
        """The merged gradient."""

    def owned(self) -> tuple[Tensor, ...]:
        """Parameters of the method, which are inputs of the node."""

    def own_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Their gradients."""
