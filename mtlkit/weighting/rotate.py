"""RotoGrad's gradient-direction homogenization: a learnt rotation of the features for every task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.rotations import (
    drift,
    fold_,
    orthogonalize,
    packed_shape,
    packed_skew_products,
    skew_product,
    traced_exponential_step,
    unpack,
)
from mtlkit.weighting.solvers import safe_divide

__all__ = ["Rotate"]

_FOLDS_BETWEEN_CHECKS = 16
# After thin products did not do, the next folds of the task are done without trying them.
_FOLDS_AT_REST = 16
# Up to this many features the rotations of all tasks are folded in one batch also on a CPU.
_SMALL = 128
# radians in one step: beyond this nothing is left of the direction in float32
_LARGEST_MOVE = 1e3
# Root mean square of the entries of a row of R'R - I, times the root of their number.
_ALLOWED_DRIFT = 2e-6


@register_method("rotate")
class Rotate(GradientAggregator):
    r"""Rotate the features for every task so that the task gradients come to point the same way.

    Task k is given :math:`r_k = R_k z`. With :math:`G_k = R_k^\top \nabla_{r_k} L_k`, the unit gradients
    :math:`U_k = G_k / \|G_k\|` and the target :math:`V = \frac1K \sum_k U_k`, the rotations minimise

    .. math:: -\sum_n \langle R_k^\top \tilde g_{n,k},\ v_n \rangle, \qquad
        \tilde g_{n,k} = \nabla_{r_k} L_k \text{ held constant}

    on SO(m) (section 3.2 and Algorithm 1 of the paper). The part owns the rotations: an optimizer moves
    them along the skew gradient :math:`R_k^\top E_k - E_k^\top R_k = V^\top G_k - G_k^\top V`, and they
    are brought back onto the manifold by :math:`R_k \leftarrow R_k \exp(A_k)` before the next forward.
    What merges the :math:`G_k` is another part: ``rotate+scale`` is RotoGrad, ``rotate+imtl_g`` the
    paper's "RotoGrad + IMTL-G", and alone it is "Rotate Only".

    Cost: one (batch, m) x (m, m) product per task in the forward and two in the backward, and one to
    three m x m products per task for the fold. With ``param=lie`` the state is 1.5 K m x m numbers.

    Args:
        feature_dim: size of the rotated axis (given to ``create_method``).
        size: rotate only the first ``size`` features and pass the others; default all.
        blocks: block-diagonal rotations of this many equal blocks.
        dim: which axis holds the features: -1 for (B, d) and (B, T, d), ``channel`` for (B, C, ...) with
            every position rotated alike, ``flat`` for all but the batch axis, flattened.
        update_every: let the rotations learn at every such step only.
        burn_in: the step at which ``scale`` reads its reference norms anew, as in the authors' code.
        param: ``lie`` (fast), or ``geotorch``, the reference: autograd through geotorch's exponential.
        leaf: which tensor is rotated where the features are a list or dict of tensors; default the last.
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    year = 2022

    _rotates = True
    base: Tensor
    turns: Tensor
    folds: Tensor
    rests: Tensor
    """Folds of each task until thin products are tried again."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        feature_dim: int | None = None,
        size: int | None = None,
        blocks: int = 1,
        dim: int | Literal["channel", "flat"] = -1,
        update_every: int = 1,
        burn_in: int = 0,
        param: Literal["lie", "geotorch"] = "lie",
        leaf: int = -1,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.size, self.blocks, self.dim = size, blocks, dim
        self.update_every, self.burn_in, self.param, self.leaf = update_every, burn_in, param, leaf
        self.side = _checked_size(size, feature_dim, blocks)
        if update_every < 1:
            raise SpecError(f"update_every of rotate must be 1 or more, not {update_every}")
        if burn_in < 0:
            raise SpecError(f"burn_in of rotate must be 0 or more, not {burn_in}")
        shape = (len(self.tasks), blocks, self.side // blocks, self.side // blocks)
        if param == "lie":
            self.register_buffer("base", torch.eye(shape[-1]).expand(shape).clone())
            # one per task: optimizers then work on pieces that fit into a cache
            packed = (blocks, *packed_shape(shape[-1]))
            self.lie = nn.ParameterList([torch.zeros(packed) for _ in self.tasks])
        else:
            self.frames = _geotorch_frames(shape)
        self.register_buffer("turns", torch.zeros((), dtype=torch.long))
        self.register_buffer("folds", torch.zeros((), dtype=torch.long))
        # kept with the state, so that training goes on bit for bit
        self.register_buffer("rests", torch.zeros(len(self.tasks), dtype=torch.long))
        # whether this step updates, and what geotorch does, depends on values
        self.traceable = update_every == 1 and param == "lie"  # type: ignore[misc]

    @property
    def rotations(self) -> Tensor:
        """(K, m, m) current rotations."""
        with torch.no_grad(), _full_precision(self._device):
            self.fold()
            # geotorch's of the last forward are not those after the optimizer's step
            current = self.base if self.param == "lie" else self._geotorch_rotations()
            current = current.detach()
            if self.blocks == 1:
                return current[:, 0].clone()
            return torch.stack([torch.block_diag(*blocks) for blocks in current])

    def join(self, parts: Sequence[GradientAggregator]) -> None:
        """Hand ``burn_in`` to the part that has reference norms."""
        if self.burn_in:
            merge = next((part for part in parts if "merge" in part._plays), None)
            if merge is None or not hasattr(merge, "burn_in"):
                raise SpecError(
                    f"burn_in re-reads the reference norms of 'scale', and {merge or 'the sum'} has "
                    "none; write 'rotate+scale(burn_in=20)', or leave burn_in out"
                )
            merge.burn_in = merge.burn_in or self.burn_in  # type: ignore[assignment]

    def prepare(self) -> None:
        """Bring the rotations back onto the manifold after an optimizer's step."""
        self.fold()
        if self.param == "geotorch":
            with _full_precision(self._device):
                frames = [module.weight for module in self.frames]
            self._pending.scratch["frames"] = frames if torch.is_grad_enabled() else None

    def fork(self, features: list[Tensor]) -> list[list[Tensor]]:
        """The features, rotated for every task."""
        index = self._leaf_index(features)
        views = self._rotate(features[index], self._current().detach())
        return [[*features[:index], view, *features[index + 1 :]] for view in views]

    def pull_back(self, grads: dict[int, list[Tensor | None]]) -> dict[int, list[Tensor | None]]:
        """Turn the gradients back: :math:`G_k = R_k^T g_k`."""
        if not grads:
            return grads
        index = self._leaf_index(next(iter(grads.values())))
        given = {task: leaves[index] for task, leaves in grads.items()}
        if any(gradient is None for gradient in given.values()):
            return grads  # no task's gradient reaches the rotated tensor
        tasks = list(given)
        inverse = self._current().detach().mT
        if len(tasks) < len(self.tasks):
            inverse = inverse[tasks]
        stacked = torch.stack([g for g in given.values() if g is not None])
        if stacked.dtype in (torch.float16, torch.bfloat16):
            stacked = stacked.float()
        turned = self._apply_to_stack(stacked, inverse)
        if not torch.compiler.is_compiling():
            self._pending.scratch["turned"] = turned  # saves stacking them again
        return {
            task: [*grads[task][:index], turned[i], *grads[task][index + 1 :]]
            for i, task in enumerate(tasks)
        }

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """The matrices that the optimizer moves, or geotorch's rotations."""
        if self.param == "lie":
            return tuple(self.lie)
        return tuple(self._pending.scratch.get("frames") or ())

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        r"""Skew gradients :math:`V^\top G_k - G_k^\top V`; None in the steps between updates."""
        owned = self.junction_parameters()
        if self.update_every > 1 and int(self.turns) % self.update_every:
            self._pending.scratch.pop("turned", None)
            _keep_without_gradient(self.parameters())
            return (None,) * len(owned)
        gradients = self._skew_gradients(step)
        if step.group is not None:
            gradients = step.all_reduce(torch.stack(list(gradients)), mean=True).unbind(0)
        if self.param == "lie":
            if not torch.compiler.is_compiling():
                self._pending.scratch["moved"] = True
            return tuple(gradients)
        # half of it is the part of E in the tangent space, which is all that geotorch sees
        return tuple(torch.bmm(R.detach(), A / 2) for R, A in zip(owned, gradients, strict=True))

    def update(self, step: Step) -> None:
        """Count the steps between updates."""
        if self.update_every > 1:
            self.count("turns", step)

    @torch.no_grad()
    def fold(self) -> None:
        """Fold what an optimizer did into the rotations: ``R <- R exp(A)``, ``A <- 0``."""
        if self.param == "lie":
            with _full_precision(self._device):
                self._fold()

    def _fold(self) -> None:
        if torch.compiler.is_compiling():
            for rotation, lie in zip(self.base, self.lie, strict=True):
                rotation.copy_(traced_exponential_step(rotation, unpack(lie, rotation.shape[-1])))
                lie.zero_()
            return
        scratch = self._pending.scratch
        versions = [lie._version for lie in self.lie]
        if scratch.get("versions") == versions and not scratch.get("moved"):
            return
        extremes = [torch.stack(torch.aminmax(lie)) for lie in self.lie]
        moved = torch.stack(extremes).abs().amax(dim=1).tolist()
        if not all(size <= _LARGEST_MOVE for size in moved):  # NaN is not either
            warnings.warn(
                f"rotate: a step of the optimizer moved the rotations by {max(moved):.3g}, which is no "
                "angle; that move is dropped and the rotations stay as they were",
                RuntimeWarning,
                stacklevel=2,
            )
        elif any(moved):
            self._move()
        if any(moved):
            for lie in self.lie:
                lie.zero_()
        scratch["versions"], scratch["moved"] = [lie._version for lie in self.lie], False

    def _move(self) -> None:
        side = self.base.shape[-1]
        if self._device.type != "cpu" or side <= _SMALL:
            base = self.base.flatten(0, 1)
            fold_(base, unpack(torch.stack(list(self.lie)), side).flatten(0, 1))
            if not self.base.is_contiguous():  # as after .to(memory_format=torch.channels_last)
                self.base.copy_(base.view_as(self.base))
        else:  # matrices that fill a cache go one task after the other
            scratch = torch.empty(2, *self.base.shape[1:], dtype=self.base.dtype)
            rests = self.rests.numpy()
            for task, (rotation, lie) in enumerate(zip(self.base, self.lie, strict=True)):
                move = unpack(lie, side, out=scratch[0] if side % 2 == 0 else None)
                rested = rests[task] == 0
                found = fold_(rotation, move, scratch[1], thin=rested)
                rests[task] = (0 if found else _FOLDS_AT_REST) if rested else rests[task] - 1
        self.folds += 1
        if int(self.folds) % _FOLDS_BETWEEN_CHECKS == 0:
            for rotation in self.base:
                if float(drift(rotation)) > _ALLOWED_DRIFT * side**0.5:
                    rotation.copy_(orthogonalize(rotation))

    def _current(self) -> Tensor:
        """(K, b, n, n) rotations."""
        if self.param == "lie":
            return self.base
        frames = self._pending.scratch.get("frames")
        return torch.stack(list(frames)) if frames else self._geotorch_rotations()

    def _geotorch_rotations(self) -> Tensor:
        with _full_precision(self._device):
            weights: list[Any] = [module.weight for module in self.frames]
            return torch.stack(weights)

    @property
    def _device(self) -> torch.device:
        return self.turns.device

    def _skew_gradients(self, step: Step) -> Sequence[Tensor]:
        r"""K :math:`V^\top G_k - G_k^\top V`, packed for ``lie``; zero where a task has no gradient."""
        side = self.side // self.blocks
        shape = (self.blocks, *packed_shape(side)) if self.param == "lie" else (self.blocks, side, side)
        stacked = self._turned(step)
        if stacked is None:
            return [step.gram.new_zeros(shape) for _ in self.tasks]
        rows = self._feature_rows(stacked).to(step.gram.dtype)  # (P, b, N, n)
        norms = step.feature_gram.diagonal().sqrt() * step.scale.abs() * (step.world * len(step.present))
        if step.local != step.present:
            norms = norms[[step.present.index(task) for task in step.local]]
        inverse = safe_divide(torch.ones_like(norms), norms)
        target = torch.einsum("p,pbni->bni", -inverse, rows)  # (b, N, n)
        if self.param == "lie":
            products = packed_skew_products(rows, target)
        else:
            products = [skew_product(own, target) for own in rows]
        found = dict(zip(step.local, products, strict=True))
        absent = [k for k in range(len(self.tasks)) if k not in found]
        found |= {k: step.gram.new_zeros(shape) for k in absent}
        return [found[k] for k in range(len(self.tasks))]

    def _turned(self, step: Step) -> Tensor | None:
        """(P, ...) gradients of the rotated tensor; None where no task's reaches it."""
        if not torch.compiler.is_compiling():
            return self._pending.scratch.pop("turned", None)
        index = self._leaf_index(step.grads[step.local[0]])
        leaves = [step.grads[task][index] for task in step.local]
        found = [leaf for leaf in leaves if leaf is not None]
        return torch.stack(found) if found else None

    def _leaf_index(self, leaves: Sequence[Any]) -> int:
        if not -len(leaves) <= self.leaf < len(leaves):
            raise UsageError(
                f"rotate(leaf={self.leaf}): the features are {len(leaves)} tensors; choose one of them"
            )
        return self.leaf % len(leaves)

    def _rotate(self, feature: Tensor, rotations: Tensor) -> list[Tensor]:
        """``R_k z`` for every task, in the dtype of the features."""
        self._axis(feature)
        rotations = rotations.to(feature.dtype)
        turned = self._apply_to_stack(feature.unsqueeze(0), rotations)
        return list(turned.unbind(0))

    def _apply_to_stack(self, stack: Tensor, rotations: Tensor) -> Tensor:
        """Rotate (1 or P, batch, ...) tensors by (P, b, n, n) matrices."""
        count, blocks, side, _ = rotations.shape
        shape = (count, *stack.shape[1:])
        before, length, after = self._folded_shape(stack.shape[1:])
        flat = stack.reshape(stack.shape[0], before, length, after)
        head = flat[:, :, : self.side]
        if after == 1 and blocks == 1:
            rows = head[..., 0].expand(count, -1, -1)
            turned = torch.bmm(rows, rotations[:, 0].mT).unsqueeze(-1)  # (P, before, m, 1)
        elif after == 1:
            # one product of all samples per block, not one of every sample
            rows = head.reshape(stack.shape[0], before, blocks, side).transpose(1, 2)
            turned = torch.matmul(rows, rotations.mT)  # (P, b, before, n)
            turned = turned.transpose(1, 2).reshape(count, before, self.side, 1)
        else:
            head = head.reshape(stack.shape[0], before, blocks, side, after)
            turned = torch.matmul(rotations.unsqueeze(1), head)  # (P, before, b, n, after)
            turned = turned.reshape(count, before, self.side, after)
        if length > self.side:
            rest = flat[:, :, self.side :].expand(count, -1, -1, -1)
            turned = torch.cat([turned, rest], dim=2)
        return turned.reshape(shape)

    def _feature_rows(self, stack: Tensor) -> Tensor:
        """(P, batch, ...) gradients as (P, b, N, n) rows of the rotated features."""
        before, length, after = self._folded_shape(stack.shape[1:])
        flat = stack.reshape(len(stack), before, length, after)[:, :, : self.side]
        flat = flat.reshape(len(stack), before, self.blocks, self.side // self.blocks, after)
        return flat.permute(0, 2, 1, 4, 3).flatten(2, 3)

    def _folded_shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """A feature's shape as (before, rotated axis, after)."""
        if self.dim == "flat":
            return shape[0], math.prod(shape[1:]), 1
        axis = 1 if self.dim == "channel" else int(self.dim) % len(shape)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def _axis(self, feature: Tensor) -> None:
        """Check that the features are as long as the rotations need them."""
        needed = 2 if self.dim in ("channel", "flat") else 1
        if feature.dim() < needed or not feature.is_floating_point():
            raise UsageError(
                f"rotate(dim={self.dim}) cannot rotate a {feature.dtype} tensor of shape "
                f"{tuple(feature.shape)}"
            )
        if isinstance(self.dim, int) and not -feature.dim() <= self.dim < feature.dim():
            raise UsageError(
                f"rotate(dim={self.dim}): features of shape {tuple(feature.shape)} have no such axis"
            )
        length = self._folded_shape(feature.shape)[1]
        wrong = length != self.side if self.size is None else length < self.side
        if wrong:
            raise UsageError(
                f"rotate was made for {self.side} features, but the axis dim={self.dim} of features of "
                f"shape {tuple(feature.shape)} has {length}; pass feature_dim={length} to "
                "create_method, or choose another dim (-1, 'channel', 'flat') or size"
            )


def _full_precision(device: torch.device) -> torch.autocast:
    """Rotations are computed in their own precision also where the forward is autocast."""
    return torch.autocast(device.type, enabled=False)


def _checked_size(size: int | None, feature_dim: int | None, blocks: int) -> int:
    side = size if size is not None else feature_dim
    if side is None:
        raise SpecError(
            "rotate needs to know how many features it rotates: pass feature_dim=... to create_method, "
            "or write rotate(size=...)"
        )
    if side < 1 or (feature_dim is not None and side > feature_dim):
        raise SpecError(f"size of rotate must be between 1 and feature_dim={feature_dim}, not {side}")
    if blocks < 1 or side % blocks:
        raise SpecError(f"blocks of rotate must divide the {side} rotated features, not {blocks}")
    return side


def _geotorch_frames(shape: tuple[int, int, int, int]) -> nn.ModuleList:
    """One geotorch-constrained module per task, at the identity, as in the authors' code."""
    import geotorch
    from torch.nn.utils import parametrize

    frames = nn.ModuleList()
    identity = torch.eye(shape[-1]).expand(shape[1:]).clone()
    with torch.random.fork_rng(devices=[]):  # geotorch draws a start that is not used
        for _ in range(shape[0]):
            module = nn.Module()
            module.weight = nn.Parameter(identity.clone())
            parametrize.register_parametrization(module, "weight", geotorch.SO(identity.shape))
            module.weight = identity
            frames.append(module)
    return frames


def _keep_without_gradient(parameters: Iterable[Tensor]) -> None:
    """Let parameters that have no gradient now have none after this backward either.

    DDP fills in zeros where a backward brings no gradient, and an optimizer with momentum would move
    the parameters by them, which it does not do in one process.
    """
    without = [parameter for parameter in parameters if parameter.grad is None]
    if not (without and dist.is_available() and dist.is_initialized()):
        return

    def clear() -> None:
        for parameter in without:
            parameter.grad = None

    engine = torch.autograd.Variable._execution_engine
    # DDP's own callback is queued later than this one, and a callback's callback later still
    engine.queue_callback(lambda: engine.queue_callback(clear))
