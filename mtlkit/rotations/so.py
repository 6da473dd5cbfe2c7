"""K x b rotations of SO(n) that any optimizer can move."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self
from zlib import crc32

import torch
from torch import Tensor, nn

from mtlkit.engine import compiled
from mtlkit.rotations.axis import block_diagonal
from mtlkit.rotations.exponential import (
    degree_for,
    exponential_minus_one,
    packed_shape,
    packed_skew_products,
    unpack,
)
from mtlkit.rotations.manifold import correct_drift_, orthogonalize, projected, starting_rotations

_UPDATES_BETWEEN_CHECKS = 16
# Matrices are folded in chunks of this many numbers, which fit into a CPU's cache: at K=10, m=512 that
# is one at a time, and takes three quarters of the time of one batch.
_CHUNK = 2**18
# a float64 step of 0.5 is then exact to 1e-16
_SQUARINGS = {torch.float64: 3}
# 2^6 times the capacity of one step, more than any move in practice
_SQUARINGS_IN_EVALUATION = 6
# PyTorch before 2.7 does not tell exports from other graphs
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


class _Evaluated(NamedTuple):
    """What an evaluation has read and found, so that it folds once, not for every batch."""

    key: tuple[int, list[tuple[int, int]]]
    due: bool
    lie: list[Tensor]
    rotations: Tensor


class Rotations(nn.Module):
    r"""Rotations :math:`R_k`, moved along skew-symmetric matrices by the exponential map.

    An optimizer updates the parameters ``lie`` along the gradient at the current rotations. A fold
    applies the update since the previous fold to the rotations:

    .. math:: A = \mathtt{lie} - \mathtt{applied}, \qquad
        \mathtt{base} \leftarrow \mathtt{base}\, \exp(A), \qquad \mathtt{applied} \leftarrow \mathtt{lie}

    At A = 0 the derivative of the exponential is the identity, so nothing is differentiated through it.
    The parameters are only read. So they may be copied or averaged, a forward pass may be repeated, and
    a second fold without a step of the optimizer changes nothing.

    With ``fold_every`` n > 1 the first update is applied at once. Then the updates add up in ``lie``,
    and every n-th of them folds their sum; until then the network sees the same rotations, in
    evaluation too.

    A fold takes two to four n x n products per rotation, depending on the degree of the exponential,
    and for sums of large updates one more for every doubling of ``fold_every``. The degree is chosen at
    every sixteenth update, for four times what is folded then; the rest of a larger sum is applied by
    the following folds. An update that is not finite is not applied. The state is 2 K b n x n numbers.

    Args:
        count: number of rotations, K.
        side: number of features that they rotate, m.
        blocks: number b of equal diagonal blocks, of n = m / b rows.
        start: ``identity``, or ``random``: drawn independently and uniformly from SO(n).
        seed: seed of the random start, the same on every process.
        fold_every: fold only every this many updates.

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
        # Three axes, not four: .to(memory_format=...) does not change such tensors.
        self.register_buffer("base", starting_rotations(count * blocks, self.side, start, seed))
        self.register_buffer("applied", torch.zeros(count * blocks, *packed))  # (K b, 2 h, h)
        # one parameter per task, so that optimizers work on tensors that fit into the cache
        self.lie = nn.ParameterList([torch.zeros(blocks, *packed) for _ in range(count)])
        # saved, so that training resumes bit for bit: folds, the degree, and updates since the last fold
        self.folds, self.degree, self.waiting = 0, 8, 0
        # Checksum of ``lie`` at the last forward, because FSDP and optimizers that write to .data change
        # no versions; None where the last update did.
        self._known: int | None
        # Versions of ``base`` and ``lie`` after the last forward, to notice later writes; only that of
        # ``base`` in a new, loaded or copied module.
        self._seen: list[tuple[int, int]]
        self._cache: _Evaluated | None
        self._begin()
        self._expose()
        self.register_load_state_dict_post_hook(_begin)  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        """Look for updates of the present parameters from now on."""
        self._known, self._seen, self._cache = self._checksum(), _versions([self.base]), None

    def fold(self) -> Tensor:
        """Return (K, b, n, n) rotations for this forward.

        In training, the updates since the last fold are applied first. In evaluation and where gradients
        are disabled, nothing is written.
        """
        recorded = self.training and torch.is_grad_enabled()
        if not torch.compiler.is_compiling():
            return self._advanced() if recorded else self._evaluated()
        if _is_exporting():  # which cannot look for updates: those of the last evaluation are in it
            return self._functional(due=self._cache is None or self._cache.due)
        flat = compiled.call(self._handles[recorded], self.base.numel(), self.base)
        return flat.view(self.count, self.blocks, self.side, self.side)

    def _expose(self) -> None:
        """Let compiled graphs call what looks for updates and counts them, which they cannot trace."""
        self._handles = compiled.expose(self._copy_evaluated), compiled.expose(self._copy_advanced)

    def _copy_evaluated(self, _: Tensor) -> Tensor:
        return self._evaluated().flatten().clone()

    def _copy_advanced(self, _: Tensor) -> Tensor:
        return self._advanced().flatten().clone()

    def _advanced(self) -> Tensor:
        """Return the rotations for a step, with the updates applied that are due."""
        with torch.no_grad(), torch.autocast(self.base.device.type, enabled=False):
            if pending := self._pending():
                self.waiting += pending
                self._known = None if self._written() else self._checksum()
            if len(self._seen) == 1 or self._overwritten():  # for example by an average
                self.base.copy_(projected(self.base))
            if self.waiting >= self._interval:
                self._fold_now()
            self._seen = _versions([self.base, *self.lie])
        return self.current()

    def _pending(self) -> int:
        """Count the updates since the last forward: 0, 1, or as many as a fold needs."""
        if self._sharded or not self._written():
            if self._known is not None:
                changed = self._checksum() != self._known
            else:  # the last update changed versions, as the next one will; compared where that is exact
                changed = not self.waiting and not torch.equal(self._packed(), self.applied)
            if not changed:
                return 0
        if len(self._seen) == 1 and self._overwritten():  # an average, whose changes are no updates
            return max(1, self._interval - self.waiting)
        return 1

    def _written(self) -> bool:
        """Whether the versions of the parameters have changed since the last forward."""
        return len(self._seen) > 1 and self._seen[1:] != _versions(self.lie)

    def _overwritten(self) -> bool:
        """Whether something else has written to the rotations."""
        return self._seen[:1] != _versions([self.base])

    def _checksum(self) -> int:
        """Return a checksum of the parameters; synchronizes."""
        return 0 if self.base.is_meta else crc32(self._packed().cpu().numpy().data)

    @property
    def _sharded(self) -> bool:
        """Whether FSDP has sharded the parameters, which it undoes for a forward pass."""
        return any(hasattr(p, "full_tensor") for p in self.lie)

    def _fold_now(self) -> None:
        packed = self._packed()
        if self.folds % max(1, _UPDATES_BETWEEN_CHECKS // self.fold_every) == 0:
            self._check(packed)
        _fold_(self.base, self.applied, packed, self.degree)
        self.folds += 1
        self.waiting = 0

    def current(self) -> Tensor:
        """Return the (K, b, n, n) rotations of the last :meth:`fold`, which a backward needs."""
        if not self.training:
            return self._evaluated()
        return self.base.view(self.count, self.blocks, self.side, self.side)

    def matrices(self) -> Tensor:
        """Return a copy of the (K, m, m) rotations that the next :meth:`fold` would give."""
        return block_diagonal(self._evaluated())

    def owned(self) -> tuple[Tensor, ...]:
        """Return the tensors that get the :meth:`gradients`, one per task."""
        return tuple(self.lie)

    def gradients(self, tasks: Sequence[int], rows: Tensor, target: Tensor) -> list[Tensor]:
        r"""Return gradients of :math:`\langle G_k, V \rangle`, :math:`G_k = R_k^\top g_k`, g_k constant.

        They are :math:`G_k^\top V - V^\top G_k`, packed; zero for tasks that are not given.

        Args:
            tasks: P of the K tasks.
            rows: (P, b, N, n) gradients G of these tasks.
            target: (b, N, n) directions V.
        """
        with torch.autocast(self.base.device.type, enabled=False):
            products = packed_skew_products(rows.to(self.base.dtype), target.to(self.base.dtype))
        found = dict(zip(tasks, products, strict=True))
        return [found[k] if k in found else torch.zeros_like(self.lie[k]) for k in range(self.count)]

    def _check(self, packed: Tensor) -> None:
        """Correct rounding, and choose the degree of the exponential for the following updates.

        Called at every sixteenth update, the only time that a fold synchronizes.
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
            sums = move if self.folds else move * self.fold_every  # all folds but the first
            # the sum of n updates is as much per update as the capacity of one
            most = 8 << (self.fold_every - 1).bit_length()
            self.degree = degree_for(unpack(sums, self.side), most)

    def _evaluated(self) -> Tensor:
        """Return the (K, b, n, n) rotations that the next fold would give, on the manifold."""
        key = self.waiting, _versions([self.base, self.applied, *self.lie])
        if self._cache is None or self._cache.key != key or not self._unwritten(self._cache.lie):
            due = self.waiting + self._pending() >= self._interval
            # not an inference tensor, because the cache may be used with gradients later
            with torch.inference_mode(False):
                lie = [p.detach().clone() for p in self.lie]
                self._cache = _Evaluated(key, due, lie, self._functional(due))
        return self._cache.rotations

    def _unwritten(self, kept: Sequence[Tensor]) -> bool:
        """Whether the parameters are those that were kept: FSDP and ``.data`` leave no version."""
        return not self._sharded and all(map(torch.equal, kept, self.lie))

    @torch.no_grad()
    def _functional(self, due: bool) -> Tensor:
        with torch.autocast(self.base.device.type, enabled=False):
            lie = self._packed() if due else self.applied
            rotations = _folded(self.base, self.applied, lie)
        return rotations.view(self.count, self.blocks, self.side, self.side)

    @property
    def _interval(self) -> int:
        return self.fold_every if self.folds else 1

    def _packed(self) -> Tensor:
        """Return the (K b, 2 h, h) parameters of all tasks."""
        found = [parameter.detach() for parameter in self.lie]
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in found]
        return torch.cat(whole).to(self.base.dtype)

    def get_extra_state(self) -> Tensor:
        """Return the counters on the host, with which training resumes bit for bit."""
        return torch.tensor([self.folds, self.degree, self._counted()])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        self.folds, self.degree, self.waiting = state.tolist()

    def _counted(self) -> int:
        """Return the number of updates since the last fold."""
        if self._sharded:  # saved after an update, which only a forward could see
            return self.waiting + (len(self._seen) > 1)
        return self.waiting + self._pending()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or pickle, without versions of tensors, which differ there."""
        own = {key: value for key, value in self.__dict__.items() if key not in ("_handles", "_cache")}
        return own | {"waiting": self._counted()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()
        self._expose()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep float32 or better when a model is cast to half precision."""
        self.waiting = self._counted()

        def careful(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(result.device)
            return result

        super()._apply(careful, recurse)  # type: ignore[no-untyped-call]
        self._begin()
        return self


def _begin(rotations: Rotations, _: Any) -> None:
    rotations._begin()  # noqa: SLF001  not the bound method, which a copy would call on the original


def _fold_(base: Tensor, applied: Tensor, lie: Tensor, degree: int = 8) -> None:
    """Apply ``base <- base exp(f A)``, ``applied <- applied + f A`` in place, with A = lie - applied.

    The (B, n, n) ``base`` are rotations; ``lie``, the optimizer's parameters, and ``applied``, the part
    of them that is in ``base`` already, are packed, (B, 2 h, h). The factors f are 1 for moves up to the
    capacity of the ``degree``, and 0 for moves that are not finite. No synchronization.
    """
    chunk = max(1, _CHUNK // base.shape[-1] ** 2)
    squarings = _SQUARINGS.get(base.dtype, max(0, degree.bit_length() - 4))
    degree = min(degree, 8)
    pieces = (torch.split(tensor, chunk) for tensor in (base, applied, lie))
    for rotations, done, wanted in zip(*pieces, strict=True):
        step, factor = _step(rotations.shape[-1], done, wanted, degree, squarings)
        rotations += torch.bmm(rotations, step)
        # exactly what was wanted where the factor is 1; it is 0 where that is not finite
        done.lerp_(torch.nan_to_num(wanted, 0.0, 0.0, 0.0), factor)


def _folded(base: Tensor, applied: Tensor, lie: Tensor) -> Tensor:
    """Return ``base exp(lie - applied)`` on the manifold, even if ``base`` was averaged or rounded."""
    base = projected(base)
    step, _ = _step(base.shape[-1], applied, lie, 8, _SQUARINGS_IN_EVALUATION)
    return orthogonalize(torch.baddbmm(base, base, step))


def _step(side: int, applied: Tensor, lie: Tensor, degree: int, squarings: int) -> tuple[Tensor, Tensor]:
    """Return ``exp(f A) - 1`` and (B, 1, 1) f."""
    move = lie - applied
    largest = move.abs().amax(dim=(-2, -1), keepdim=True)
    # the powers of such entries stay within the dtype's range, and no smaller move is cut
    limit = 2.0**squarings
    scale = torch.where(largest.isfinite(), limit / largest.clamp_min(limit), 0.0)
    zeroed = torch.nan_to_num(move, 0.0, 0.0, 0.0)  # many times faster than where
    move = unpack(zeroed.mul_(scale), side)
    step, factor = exponential_minus_one(move, degree, squarings)
    return step, factor * scale


def _versions(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return each tensor's id and version, which change when it is replaced or written in place."""
    return [
        (id(tensor), 0 if tensor.is_inference() else tensor._version)  # noqa: SLF001  no public name
        for tensor in tensors
    ]
