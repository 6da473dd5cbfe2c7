"""A warning for parameters of a method, such as rotations, that no optimizer trains."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from mtlkit.config.launching import warn_first
from mtlkit.engine.graph import leaves_below


class OptimizerGuard:
    """Looks, once, at the first optimizer that updates what the losses of a method depend on."""

    def __init__(self) -> None:
        self.done = False
        """Whether the check was made or is awaited; a Trainer makes it itself."""
        self._method: Any = None
        self._network: list[weakref.ref[Tensor]] = []  # the network's parameters

    def before_step(self, method: Any, losses: Mapping[int, Tensor]) -> None:
        """Await the optimizer of the first step, if the method owns parameters."""
        if self.done:
            return
        self.done = True
        owned = _trained(method)
        if owned:
            self._method = weakref.ref(method)
            below = leaves_below(losses.values())
            self._network = [weakref.ref(leaf) for leaf in below if id(leaf) not in owned]
            _awaiting.add(self)
            _watch_optimizers()

    def after_step(self, optimizer: Optimizer) -> None:
        """Warn if this optimizer trains the network, and none trains the method."""
        held = _held_by(optimizer)
        alive = {id(leaf) for each in self._network if (leaf := each()) is not None}
        if alive.isdisjoint(held):
            return
        _awaiting.discard(self)
        method = self._method()
        owned = set() if method is None else _trained(method)
        if owned <= held:
            return
        everything: list[Any] = gc.get_objects()  # the method may have an optimizer of its own
        held = held.union(*(_held_by(x) for x in everything if issubclass(type(x), Optimizer)))
        if not owned <= held:
            warn_first(
                f"no optimizer holds {len(owned - held)} of the {len(owned)} parameters of {method}, so "
                "they (rotations, weights) are not trained; create the optimizer with "
                "mtlkit.param_groups([backbone, heads, method], lr=...), or call "
                "method.requires_grad_(False) as long as they are to stay as they are",
                stacklevel=5,  # the line that calls optimizer.step()
            )


_awaiting: weakref.WeakSet[OptimizerGuard] = weakref.WeakSet()


@cache
def _watch_optimizers() -> None:
    """Let every step of an optimizer in this process be looked at while a guard awaits one."""

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            for guard in list(_awaiting):
                guard.after_step(optimizer)

    register_optimizer_step_post_hook(after_step)


def _trained(method: Any) -> set[int]:
    return {id(parameter) for parameter in method.parameters() if parameter.requires_grad}


def _held_by(optimizer: Optimizer) -> set[int]:
    groups: Any = getattr(optimizer, "param_groups", ())
    return {id(parameter) for group in groups for parameter in group["params"]}
