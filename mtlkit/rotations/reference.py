"""The reference: geotorch's rotations, with autograd through its exponential."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mtlkit.errors import MissingExtraError
from mtlkit.rotations.axis import block_diagonal
from mtlkit.rotations.exponential import skew_product
from mtlkit.rotations.manifold import starting_rotations


class GeotorchRotations(nn.Module):
    """The same as :class:`~mtlkit.rotations.Rotations`, but ten times slower.

    The base point never moves, as in the authors' code of RotoGrad. The rotations of a forward are part
    of its graph: the backward pass gives them gradients, and autograd gives those of geotorch's
    parameters.

    Example:
        >>> rotations = GeotorchRotations(count=2, side=3)
        >>> torch.allclose(rotations.matrices(), torch.eye(3), atol=1e-6)
        True
    """

    def __init__(
        self,
        count: int,
        side: int,
        blocks: int = 1,
        start: Literal["identity", "random"] = "identity",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.count, self.blocks, self.side = count, blocks, side // blocks
        starts = starting_rotations(count * blocks, self.side, start, seed)
        self.frames = nn.ModuleList(_constrained(rotations) for rotations in torch.split(starts, blocks))
        self._rotations: tuple[Tensor, ...] = ()

    def fold(self) -> Tensor:
        """Return (K, b, n, n) rotations for this forward."""
        rotations = self._computed()
        self._rotations = rotations if torch.is_grad_enabled() else ()
        return torch.stack(rotations).detach()

    def current(self) -> Tensor:
        """Return the (K, b, n, n) rotations of the last :meth:`fold`, which a backward needs."""
        return torch.stack(self._rotations or self._computed()).detach()

    def matrices(self) -> Tensor:
        """Return a copy of the (K, m, m) rotations with all updates of the optimizer applied."""
        return block_diagonal(torch.stack(self._computed()).detach())

    def owned(self) -> tuple[Tensor, ...]:
        """Return the rotations of this forward, which get the :meth:`gradients`."""
        return self._rotations

    def gradients(self, tasks: Sequence[int], rows: Tensor, target: Tensor) -> list[Tensor]:
        """Return K (b, n, n) gradients for (P, b, N, n) ``rows`` and a (b, N, n) ``target``.

        geotorch projects the gradient of a rotation onto the tangent space, which leaves R A / 2.
        """
        own = dict(zip(tasks, rows, strict=True))
        with torch.autocast(rows.device.type, enabled=False):
            return [
                torch.bmm(R, skew_product(own[k].to(R), target.to(R)) / 2)
                if k in own
                else torch.zeros_like(R)
                for k, R in enumerate(self.current())
            ]

    def _computed(self) -> tuple[Tensor, ...]:
        weights: list[Any] = []
        for frame in self.frames:
            with torch.autocast(next(frame.parameters()).device.type, enabled=False):
                weights.append(frame.weight)
        return tuple(weights)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or pickle, without tensors of a graph."""
        return self.__dict__ | {"_rotations": ()}


def _constrained(rotations: Tensor) -> nn.Module:
    """Make a module whose ``weight`` is b geotorch rotations that start at (b, n, n) ``rotations``."""
    try:
        import geotorch
    except ImportError:
        raise MissingExtraError("geotorch", "geotorch", "backend=geotorch") from None

    module = nn.Module()
    module.weight = nn.Parameter(rotations.clone())
    with torch.random.fork_rng(devices=[]):  # geotorch draws a start that is not used
        parametrize.register_parametrization(module, "weight", geotorch.SO(rotations.shape))
    module.weight = rotations
    return module
