"""A warning for parameters of a method, such as rotations, that no optimizer trains."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from mtlkit.config.launching import warn_first
from mtlkit.engine.graph import leaves_below

_checked: weakref.WeakSet[Any] = weakref.WeakSet()  # methods
_waiting: weakref.WeakKeyDictionary[Any, list[weakref.ref[Tensor]]] = weakref.WeakKeyDictionary()
"""Methods whose first optimizer step is still to come, and the parameters of their networks."""
_hook: Any = None


def check_optimizers(method: Any, optimizers: Iterable[Optimizer], stacklevel: int) -> None:
    """Warn of parameters of a method that none of the optimizers holds."""
    _checked.add(method)
    owned = _trained(method)
    missing = owned.difference(*map(_held_by, optimizers))
    if missing:
        warn_first(
            f"no optimizer holds {len(missing)} of the {len(owned)} parameters of {method}, so they "
            "(rotations, weights) are not trained; create the optimizer with "
            "mtlkit.param_groups([backbone, heads, method], lr=...), or call "
            "method.requires_grad_(False) as long as they are to stay as they are",
            stacklevel=stacklevel,
        )


def awaits_optimizer(method: Any, losses: Mapping[int, Tensor]) -> bool:
    """Check the first optimizer that updates what the losses depend on; False once that is done.

    A method calls this before each step until then.
    """
    global _hook
    if method not in _checked:
        _checked.add(method)
        owned = _trained(method)
        if owned:
            below = leaves_below(losses.values())
            _waiting[method] = [weakref.ref(leaf) for leaf in below if id(leaf) not in owned]
            _hook = _hook or register_optimizer_step_post_hook(_after_step)
    if _hook is not None and not _waiting:
        _hook.remove()  # here: an optimizer's hooks must not change while they are called
        _hook = None
    return method in _waiting


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Look at an optimizer that has made a step."""
    if torch.compiler.is_compiling():
        return
    held = _held_by(optimizer)
    for method, network in list(_waiting.items()):
        if any(id(leaf()) in held for leaf in network if leaf() is not None):
            del _waiting[method]
            optimizers = [optimizer]
            if not _trained(method) <= held:  # the method may have an optimizer of its own
                everything: list[Any] = gc.get_objects()
                optimizers = [each for each in everything if issubclass(type(each), Optimizer)]
            check_optimizers(method, optimizers, stacklevel=4)  # the line that calls optimizer.step()


def _trained(method: Any) -> set[int]:
    return {id(parameter) for parameter in method.parameters() if parameter.requires_grad}


def _held_by(optimizer: Optimizer) -> set[int]:
    groups: Any = getattr(optimizer, "param_groups", ())
    return {id(parameter) for group in groups for parameter in group["params"]}
