"""Matrices before the heads: the paper's baselines "with R_k", which have the capacity of RotoGrad."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.errors import SpecError, unknown_name
from mtlkit.rotations import Axis

_OPTIONS = ("size", "dim")


class TaskMatrix(nn.Module):
    """A square matrix before a task's head, initially the identity.

    It is as large as RotoGrad's rotation of that task, but is an ordinary parameter of the head: it
    learns from the task's loss and need not be orthogonal.

    Args:
        size: number of rows; the features after these are unchanged.
        dim: axis of the features: -1, ``channel`` or ``flat``, as for ``rotate``.
    """

    def __init__(self, size: int, dim: int | Literal["channel", "flat"] = -1) -> None:
        super().__init__()
        self.axis = Axis(dim, size)
        self.matrix = nn.Parameter(torch.eye(size))

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape."""
        return self.axis.apply_one(self.matrix, features)


def add_capacity(model: Any, options: Mapping[str, Any]) -> None:
    """Put a :class:`TaskMatrix` before every head of ``model``.

    Args:
        model: an :class:`~mtlkit.Architecture` whose heads read the shared features directly.
        options: ``size`` and ``dim`` as for ``rotate``; by default the whole feature axis.
    """
    for option in options:
        if option not in _OPTIONS:
            raise unknown_name("option of extra_capacity", str(option), _OPTIONS)
    heads = getattr(model, "heads", None)
    if not isinstance(heads, nn.ModuleDict) or model.features is None:
        raise SpecError(f"extra_capacity needs heads on features of known size; {model.name} has none")
    dim = options.get("dim", "channel" if model.features.kind == "map" else -1)
    whole = model.features.flat_size if dim == "flat" else model.features.dim
    size = options.get("size", whole)
    if not isinstance(size, int) or size < 1 or (whole is not None and size > whole):
        raise SpecError(f"size of extra_capacity must be between 1 and {whole}, not {size!r}")
    for key, head in list(heads.items()):
        heads[key] = nn.Sequential(TaskMatrix(size, dim), head)
    model.extra_capacity = dict(options)
