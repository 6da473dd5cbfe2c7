"""Create an architecture from its config string."""

from typing import Any

from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.saving import build
from mtlkit.config.registry import architectures
from mtlkit.config.spec import SpecLike, format_spec
from mtlkit.errors import SpecError


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
    built: Architecture = build(parts[0], tasks, method, preference, **overrides)
    return built
