"""Optimizers from config strings, one for the network and, if wanted, another for the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from mtlkit.config.spec import parse_spec
from mtlkit.errors import ConfigError, unknown_name
from mtlkit.training.groups import METHOD_GROUP

_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
}
_OPTIONS = {
    "adam": ("betas", "eps", "amsgrad"),
    "adamw": ("betas", "eps", "amsgrad"),
    "radam": ("betas", "eps"),
    "sgd": ("momentum", "dampening", "nesterov"),
}


def build_optimizer(
    spec: str, groups: Sequence[dict[str, Any]], method_spec: str | None = None
) -> Optimizer:
    """An optimizer such as ``"sgd(momentum=0.9)"`` of these parameter groups.

    Args:
        spec: name and options.
        groups: as :func:`mtlkit.param_groups` makes them.
        method_spec: the optimizer of the method's own group, where it is another one.
    """
    own = [group for group in groups if group.get("name") == METHOD_GROUP]
    if method_spec is not None:
        _read(method_spec)  # a wrong name is an error even if the method has no parameters
    if method_spec is None or method_spec == spec or not own:
        return _make(spec, groups)
    others = [group for group in groups if group.get("name") != METHOD_GROUP]
    return CombinedOptimizer([_make(spec, others), _make(method_spec, own)])


def _read(spec: str) -> tuple[str, Mapping[str, Any]]:
    parts = parse_spec(spec)
    name = parts[0].name
    if len(parts) > 1 or name not in _OPTIMIZERS:
        raise unknown_name("optimizer", spec, _OPTIMIZERS)
    for option in parts[0].options:
        if option not in _OPTIONS[name]:
            raise unknown_name(f"option of {name}", option, _OPTIONS[name])
    return name, parts[0].options


def _make(spec: str, groups: Sequence[dict[str, Any]]) -> Optimizer:
    name, options = _read(spec)
    try:
        return _OPTIMIZERS[name](list(groups), **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {spec!r}: {error}") from None


class CombinedOptimizer(Optimizer):
    """Several optimizers as one; its parameter groups are theirs."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._gather()

    def _gather(self) -> None:
        # the same objects, so that a scheduler's changes reach the parts
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its state."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._gather()
