"""Create an architecture from its config string."""

import inspect
from typing import Any

from torch import nn

from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.preference import add_preference
from mtlkit.config.registry import architectures, option_defaults
from mtlkit.config.spec import Part, SpecLike, format_spec
from mtlkit.errors import SpecError

_NEEDED = ("method", "shared_parameters", "task_parameters")


def create_architecture(
    spec: SpecLike,
    tasks: Tasks,
    *,
    method: MethodLike = "sum",
    preference: str | None = None,
    **overrides: Any,
) -> Architecture:
    """Create an architecture from its config string.

    Args:
        spec: for example ``"hard_sharing(backbone=timm.resnet18, heads=mlp(50))"``, or the same as a
            mapping (see :mod:`mtlkit.config.spec`).
        tasks: number of tasks, their names, ``{name: number of outputs}``, or objects with ``name`` and
            ``outputs``.
        method: how the tasks' gradients are merged: a config string, or a method.
        preference: ``lora(rank=4)`` or ``full``: the shared weights depend on how much each task counts,
            which :meth:`~mtlkit.Architecture.set_preference` sets after training. Also an option of
            the string. None for ordinary weights.
        overrides: options that replace those of the string; they may be modules.

    Raises:
        SpecError: for an invalid string, an unknown name or option, or a method that needs shared
            features if the architecture has none.

    >>> import torch, mtlkit
    >>> net = mtlkit.create_architecture(
    ...     "hard_sharing(backbone=mlp(16, inputs=4))", {"kind": 3, "size": 1}, method="pcgrad"
    ... )
    >>> predictions = net(torch.randn(8, 4))
    >>> {task: tuple(prediction.shape) for task, prediction in predictions.items()}
    {'kind': (8, 3), 'size': (8, 1)}
    >>> losses = {task: prediction.square().mean() for task, prediction in predictions.items()}
    >>> net.method.total(losses).backward()
    """
    parts = architectures.expand(spec)
    if len(parts) != 1:
        raise SpecError(
            f"an architecture is one part, not {len(parts)}: {format_spec(parts)!r}; parts joined by "
            "'+' are for methods"
        )
    options = dict(parts[0].options)
    preference = options.pop("preference", None) if preference is None else preference
    options.pop("preference", None)
    parts = [Part(parts[0].name, options, parts[0].arguments)]
    (part,) = architectures.override(parts, overrides, of=parts[0].name)
    factory = architectures.check(part)
    for option, default in option_defaults(factory).items():
        if default is inspect.Parameter.empty and option not in part.options:
            raise SpecError(f"architecture {part.name} needs an option: {part.name}({option}=...)")
    built: Architecture = factory(tasks, method=method, **part.options)
    lacking = [name for name in _NEEDED if not hasattr(built, name)]
    if not isinstance(built, nn.Module) or lacking:
        raise SpecError(
            f"architecture {part.name!r} is {type(built).__name__}; it must be an Architecture, or an "
            f"nn.Module with {', '.join(_NEEDED)}"
        )
    built.spec = str(Part(part.name, part.options))
    if preference is not None:
        if not isinstance(built, Architecture):
            raise SpecError(f"preference needs an Architecture; {part.name!r} is {type(built).__name__}")
        add_preference(built, preference)
        built.spec = str(Part(part.name, {**part.options, "preference": preference}))
    return built
