"""K x b rotations of SO(n) that any optimizer can move."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from mtlkit.rotations.axis import block_diagonal
from mtlkit.rotations.exponential import degree_for, packed_shape, packed_skew_products, unpack
from mtlkit.rotations.fold import fold_, folded
from mtlkit.rotations.manifold import correct_drift_, orthogonalize, projected, starting_rotations

_FOLDS_BETWEEN_CHECKS = 16


class Rotations(nn.Module):
    r"""Rotations :math:`R_k`, moved along skew-symmetric matrices by the exponential map.

    An optimizer updates the parameters ``lie`` along the gradient at the current rotations. A fold
    applies the update since the previous fold to the rotations:

    .. math:: A = \mathtt{lie} - \mathtt{applied}, \qquad
        \mathtt{base} \leftarrow \mathtt{base}\, \exp(A), \qquad \mathtt{applied} \leftarrow \mathtt{lie}

    At A = 0 the derivative of the exponential is the identity, so nothing is differentiated through it.
    The parameters are only read. So they may be copied or averaged, a forward pass may be repeated, and
    a second fold without a step of the optimizer changes nothing.

    With ``fold_every`` n > 1 the updates add up in ``lie``, and every n-th fold applies their sum; until
    then the network sees the same rotations, in evaluation too.

    A fold takes two to four n x n products per rotation, depending on the degree of the exponential.
    The degree is chosen at every sixteenth fold, for four times the current update; the rest of a larger
    update is applied by the following folds. An update that is not finite is not applied. The state is
    2 K b n x n numbers.

    Args:
        count: how many rotations, K.
        side: how many features they rotate, m.
        blocks: rotations are block-diagonal with this many equal blocks, of n = m / b rows.
        start: ``identity``, or ``random``: uniformly distributed on SO(n), each on its own.
        seed: of the random start; it is the same on every process.
        fold_every: fold once in so many updates.

    Example:
        >>> rotations = Rotations(count=2, side=3, start="random")
        >>> first, second = rotations.matrices()
        >>> torch.allclose(first @ first.T, torch.eye(3), atol=1e-6), torch.allclose(first, second)
        (True, False)
    """

    base: Tensor
    applied: Tensor

    def __init__(
        self,
        count: int,
        side: int,
        blocks: int = 1,
        start: Literal["identity", "random"] = "identity",
        seed: int = 0,
        fold_every: int = 1,
    ) -> None:
        super().__init__()
        self.count, self.blocks, self.side = count, blocks, side // blocks
        self.fold_every = fold_every
        packed = packed_shape(self.side)
        # Three axes, not four: .to(memory_format=...) leaves such tensors alone.
        self.register_buffer("base", starting_rotations(count * blocks, self.side, start, seed))
        self.register_buffer("applied", torch.zeros(count * blocks, *packed))  # (K b, 2 h, h)
        # one parameter per task, so that optimizers work on tensors that fit into the cache
        self.lie = nn.ParameterList([torch.zeros(blocks, *packed) for _ in range(count)])
        # saved, so that training resumes bit for bit: when to check, how to fold, when to fold
        self.folds, self.degree, self.waiting = 0, 8, 0
        # A gradient was given since the last fold. Optimizers that write to .data, and sharded
        # parameters, show no other sign of an update.
        self._unfolded = False
        # Versions of ``base`` and ``lie`` after the last fold, to notice who wrote to them since; None
        # for those of a new, loaded or copied module.
        self._seen: list[tuple[int, int]] | None = None
        # Evaluation folds once, not for every batch: what it read, and the rotations.
        self._cache: tuple[Any, list[Tensor], Tensor] | None = None

    def fold(self) -> Tensor:
        """(K, b, n, n) rotations for this forward; in training, updates since the last fold are applied.

        In evaluation and where gradients are disabled, nothing is written.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self._evaluated()
        with torch.no_grad(), torch.autocast(self.base.device.type, enabled=False):
            if torch.compiler.is_compiling():  # without a counter there is no drift to be checked
                fold_(self.base, self.applied, self._packed())
                self.base.copy_(orthogonalize(self.base))
            else:
                if self._seen is None or self._seen[:1] != _versions([self.base]):
                    self.base.copy_(projected(self.base))  # it was overwritten, say by an average
                pending = self._pending()
                if self._seen is None and not self.waiting:  # all other updates are in ``applied``
                    pending = bool((self._packed() != self.applied).any())
                self.waiting += pending
                if self.waiting >= self.fold_every:
                    self._fold_now()
                self._unfolded, self._seen = False, _versions([self.base, *self.lie])
        return self.current()

    def _pending(self) -> bool:
        """Whether an optimizer may have updated the parameters since the last call of :meth:`fold`."""
        return self._unfolded or self._written()

    def _written(self) -> bool:
        return self._seen is not None and self._seen[1:] != _versions(self.lie)

    def _fold_now(self) -> None:
        packed = self._packed()
        if self.folds % _FOLDS_BETWEEN_CHECKS == 0:
            self._check(packed)
        fold_(self.base, self.applied, packed, self.degree)
        self.folds += 1
        self.waiting = 0

    def current(self) -> Tensor:
        """(K, b, n, n) rotations of the last :meth:`fold`: those that a backward needs."""
        if not self.training:
            return self._evaluated()
        return self.base.view(self.count, self.blocks, self.side, self.side)

    def matrices(self) -> Tensor:
        """(K, m, m) rotations that the next :meth:`fold` would give, as a copy."""
        return block_diagonal(self._evaluated())

    def owned(self) -> tuple[Tensor, ...]:
        """The tensors that :meth:`gradients` are the gradients of, one per task."""
        return tuple(self.lie)

    def gradients(self, tasks: Sequence[int], rows: Tensor, target: Tensor) -> list[Tensor]:
        r"""K gradients of :math:`\langle G_k, V \rangle` with :math:`G_k = R_k^\top g_k`, g_k constant.

        They are :math:`G_k^\top V - V^\top G_k`, packed; zero for tasks that are not given.

        Args:
            tasks: P of the K tasks.
            rows: (P, b, N, n) gradients G of these tasks.
            target: (b, N, n) directions V.
        """
        if not torch.compiler.is_compiling():
            # an optimizer that writes to .data changes no version
            self._unfolded, self._cache = True, None
        with torch.autocast(self.base.device.type, enabled=False):
            products = packed_skew_products(rows.to(self.base.dtype), target.to(self.base.dtype))
        found = dict(zip(tasks, products, strict=True))
        return [found[k] if k in found else torch.zeros_like(self.lie[k]) for k in range(self.count)]

    def _check(self, packed: Tensor) -> None:
        """Correct rounding, and choose the degree of the exponential for the following updates.

        Called at every sixteenth fold, the only one in training that waits for the device.
        """
        correct_drift_(self.base)
        move = packed - self.applied
        if not move.isfinite().all():
            warnings.warn(
                "parameters of the rotations are not finite, so these rotations are not updated; lower "
                "their learning rate and resume from an earlier checkpoint",
                RuntimeWarning,
                stacklevel=4,
            )
        elif self.base.dtype == torch.float32:
            self.degree = degree_for(unpack(move, self.side))

    def _evaluated(self) -> Tensor:
        """(K, b, n, n) rotations that the next fold would give, on the manifold."""
        if torch.compiler.is_compiling():
            return self._functional()
        key = self._is_due(), _versions([self.base, self.applied, *self.lie])
        if self._cache is None or self._cache[0] != key or not self._unwritten(self._cache[1]):
            # not an inference tensor: what is kept may be used with gradients later
            with torch.inference_mode(False):
                self._cache = (key, [p.detach().clone() for p in self.lie], self._functional())
        return self._cache[2]

    def _unwritten(self, kept: Sequence[Tensor]) -> bool:
        """Whether the parameters are those that were kept: writes through ``.data`` have no version."""
        pairs = zip(kept, self.lie, strict=True)
        return all(hasattr(p, "full_tensor") or torch.equal(k, p) for k, p in pairs)

    @torch.no_grad()
    def _functional(self) -> Tensor:
        with torch.autocast(self.base.device.type, enabled=False):
            lie = self._packed() if self._is_due() else self.applied
            rotations = folded(self.base, self.applied, lie)
        return rotations.view(self.count, self.blocks, self.side, self.side)

    def _is_due(self) -> bool:
        """Whether the next fold applies the updates."""
        return self.fold_every == 1 or self.waiting + self._pending() >= self.fold_every

    def _packed(self) -> Tensor:
        """(K b, 2 h, h) parameters of all tasks."""
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in self.lie]
        return torch.cat(whole).to(self.base.dtype)

    def get_extra_state(self) -> Tensor:
        """What is kept on the host: with it, training resumes bit for bit."""
        pending = self.fold_every > 1 and self._pending()  # else it is read off the parameters
        return torch.tensor([self.folds, self.degree, self.waiting, pending])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what :meth:`get_extra_state` gave."""
        self.folds, self.degree, self.waiting, pending = state.tolist()
        self._unfolded, self._seen = bool(pending), None

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy or pickle, without the versions of tensors, which differ there."""
        return self.__dict__ | {"_unfolded": self._pending(), "_seen": None, "_cache": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay in float32 or better when a model is cast to half precision."""
        self._unfolded, self._seen, self._cache = self._pending(), None, None

        def careful(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(result.device)
            return result

        super()._apply(careful, recurse)  # type: ignore[no-untyped-call]
        return self


def _versions(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Identity and version of each tensor, which change when it is replaced or written in place."""
    return [
        (id(tensor), 0 if tensor.is_inference() else tensor._version)  # noqa: SLF001  no public name
        for tensor in tensors
    ]
