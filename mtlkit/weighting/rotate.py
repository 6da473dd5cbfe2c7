"""RotoGrad's gradient-direction homogenization: a learned rotation of the features for every task."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mtlkit.config import LR_RATIO, FeatureShare, Ge, LogUniform, register_method
from mtlkit.engine.gradients import TensorList
from mtlkit.engine.processes import leave_without_gradient
from mtlkit.engine.step import Rows, Step, pick
from mtlkit.errors import SpecError, UsageError
from mtlkit.method import GradientAggregator, Tasks
from mtlkit.rotations import Axis, GeotorchRotations, Rotations


@register_method("rotate")
class Rotate(GradientAggregator):
    r"""Rotate the features for every task so that the task gradients point the same way.

    Task k is given :math:`r_k = R_k z`. With :math:`G_k = R_k^\top \tilde g_k`, where
    :math:`\tilde g_k = \nabla_{r_k} L_k` is held constant, the rotations minimize

    .. math:: -\sum_n \langle R_k^\top \tilde g_{n,k}, v_n \rangle, \quad V = \frac1K \sum_k G_k/\|G_k\|

    on SO(m) (Algorithm 1 of the paper): any optimizer moves them along :math:`V^\top G_k - G_k^\top V`,
    by the exponential map. Another part merges the :math:`G_k`: ``rotate+scale`` is RotoGrad,
    ``rotate+imtl_g`` the paper's "RotoGrad + IMTL-G", and alone it is "Rotate Only".

    Update scale: K identical gradients g merge to K g. Cost: one (batch, m) x (m, m) product per task in
    the forward, two in the backward, and two to four m x m products per task after every eighth step of
    the optimizer, or after every n-th with ``fold_every=n``.

    Differences: Algorithm 1 moves the rotations after every step, ``fold_every=1``. The default applies
    the optimizer's moves of eight steps at once, at an eighth of the cost; on Multi-MNIST, five seeds
    found no difference. The authors' code (rotograd 0.1.6) starts, in effect, from random rotations,
    because geotorch replaces the identity that it is given: ``start=random``. Its gradient of them is
    this one times twice the norm of the mean gradient for (B, d) features. That is a small number, so
    Adam's eps damps it. Its base point never moves, and its burn-in comes one step later. Its
    ``normalize_losses``, off by default, is the part ``normalize``.

    Args:
        feature_dim: size of the rotated axis, an argument of ``create_method``.
        size: rotate only the first ``size`` features and pass the others through; default all.
        blocks: block-diagonal rotations of this many equal blocks.
        dim: which axis holds the features: -1 for (B, d) and (B, T, d), ``channel`` for (B, C, ...) with
            every position rotated alike, ``flat`` for all but the batch axis, flattened.
        start: ``identity``, or ``random`` for rotations drawn uniformly from SO(m).
        seed: seed of the random start.
        update_every: update the rotations only every this many steps, at one synchronization per step.
        fold_every: after the first one, apply the optimizer's updates to the rotations every this many
            of its steps only, as one sum: the paper's slow leader, at the cost of one. Default 8, and 1
            with ``update_every`` above 1 or ``backend=geotorch``.
        burn_in: the step at which ``scale`` takes its reference norms again.
        backend: ``lie`` (fast), or ``geotorch``, the reference: autograd through geotorch's exponential.
        feature_index: which tensor is rotated where the features are a list or dict; default the last.

    Example:
        >>> import torch, mtlkit
        >>> method = mtlkit.create_method("rotograd(start=random)", tasks=2, feature_dim=3)
        >>> first, second = method(torch.tensor([[1.0, 2.0, 2.0]]))
        >>> torch.allclose(first.norm(), second.norm()), torch.allclose(first, second)
        (True, False)
    """

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    url = "https://arxiv.org/abs/2103.02631"
    idea = "Homogenize sizes and directions (RotoGrad)"
    search_space = {"size": FeatureShare(0.25, 0.5, 0.75, 1.0), LR_RATIO: LogUniform(0.05, 1.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        feature_dim: int | None = None,
        size: Annotated[int, Ge(1)] | None = None,
        blocks: Annotated[int, Ge(1)] = 1,
        dim: int | Literal["channel", "flat"] = -1,
        start: Literal["identity", "random"] = "identity",
        seed: int = 0,
        update_every: Annotated[int, Ge(1)] = 1,
        fold_every: Annotated[int, Ge(1)] | None = None,
        burn_in: Annotated[int, Ge(0)] = 0,
        backend: Literal["lie", "geotorch"] = "lie",
        feature_index: int = -1,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.size, self.blocks, self.dim, self.start, self.seed = size, blocks, dim, start, seed
        self.update_every, self.fold_every, self.burn_in = update_every, fold_every, burn_in
        self.backend, self.feature_index = backend, feature_index
        self.side = _checked_size(size, feature_dim, blocks)
        self.axis = Axis(dim, self.side, whole=size is None)
        arguments = (len(self.tasks), self.side, blocks, start, seed)
        self.rotation: Rotations | GeotorchRotations
        if backend == "lie":
            every = fold_every or (8 if update_every == 1 else 1)
            self.rotation = Rotations(*arguments, every)
            self.cost_period = max(update_every, every)
        elif fold_every in (None, 1):
            self.rotation = GeotorchRotations(*arguments)
        else:
            raise SpecError("rotate(backend=geotorch) moves at every step: leave fold_every out")
        self.add_state("turns", 0, per="all")
        # otherwise whether a step updates, or what geotorch does, depends on values
        self.traceable = update_every == 1 and backend == "lie"
        waived = {}
        if start == "random":
            waived["absent_task"] = "the rotations are drawn per position"
        if backend == "geotorch":
            waived["copies"] = "PyTorch does not pickle parametrized modules; save the state dict"
        self.waived_laws = waived

    def matrices(self) -> Tensor:
        """Return the (K, m, m) current rotations."""
        return self.rotation.matrices()

    def join(self, parts: Sequence[GradientAggregator]) -> None:
        """Pass ``burn_in`` on to the part that has reference norms."""
        if self.burn_in:
            merge: Any = next((part for part in parts if "merge" in part.roles), None)
            if not hasattr(merge, "burn_in"):
                raise SpecError(
                    f"burn_in re-reads the reference norms of 'scale', and {merge or 'the sum'} has "
                    "none; write 'rotate+scale(burn_in=20)', or leave burn_in out"
                )
            merge.burn_in = merge.burn_in or self.burn_in

    def held(self) -> tuple[Tensor, ...]:
        """Return (K, b, n, n) rotations for this forward, with the optimizer's last update applied."""
        return (self.rotation.fold(),)

    def fork(self, features: list[Tensor], *held: Tensor) -> list[list[Tensor]]:
        """Rotate the features for every task."""
        count, index = len(features), self.feature_index
        if not -count <= index < count:
            raise UsageError(f"rotate(feature_index={index}): choose one of the {count} features")
        index %= count
        self.axis.check(features[index], self.name)
        views = self.axis.apply(held[0], features[index].unsqueeze(0))
        return [[*features[:index], view, *features[index + 1 :]] for view in views]

    def pull_back(self, grads: dict[int, TensorList], *held: Tensor) -> dict[int, TensorList]:
        """Rotate the gradients back: :math:`G_k = R_k^T g_k`."""
        reached = self._rotated(grads)
        if not reached:
            return grads
        rotations = held[0]
        if len(reached) < len(self.tasks):
            rotations = torch.stack([rotations[task] for task in reached])
        stack = torch.stack(list(reached.values()))
        stack = stack.to(torch.promote_types(stack.dtype, torch.float32))
        turned = dict(zip(reached, self.axis.apply(rotations.mT, stack), strict=True))
        index = self.feature_index % len(next(iter(grads.values())))
        return {task: [*row[:index], turned.get(task), *row[index + 1 :]] for task, row in grads.items()}

    def owned(self) -> tuple[Tensor, ...]:
        """Return the parameters of the rotations, or geotorch's rotations."""
        return self.rotation.owned()

    def gradients(self, grads: Rows, units: Tensor, step: Step | None) -> list[Tensor] | None:
        r"""Return :math:`V^\top G_k - G_k^\top V`; None in the steps between updates."""
        if self.update_every > 1 and step is not None and not self._takes_turn(step):
            leave_without_gradient(self.parameters())
            return None
        reached = self._rotated(grads)
        if not reached:
            return [torch.zeros_like(parameter) for parameter in self.owned()]
        rows = self.axis.rows(torch.stack(list(reached.values())), self.blocks)  # (P, b, N, n)
        factors = pick(units, tuple(reached)).to(rows.dtype)
        target = torch.einsum("p,pbni->bni", -factors, rows)  # (b, N, n): -V
        return self.rotation.gradients(tuple(reached), rows, target)

    def _takes_turn(self, step: Step) -> bool:
        """Whether the rotations are updated in this step; counts it."""
        state = self.read(step.present)
        takes = int(state.turns) % self.update_every == 0
        if step.present:
            self.commit(state, state.replace(turns=state.turns + 1), step.present, step.finite)
        return takes

    def _rotated(self, rows: Rows) -> dict[int, Tensor]:
        """Return the gradients of the rotated tensor, for the tasks that reach it."""
        found = {task: row[self.feature_index] for task, row in rows.items()}
        return {task: leaf for task, leaf in found.items() if leaf is not None}


def _checked_size(size: int | None, feature_dim: int | None, blocks: int) -> int:
    side = size if size is not None else feature_dim
    if side is None:
        raise SpecError(
            "rotate needs a size: create_method(..., feature_dim=...) or rotate(size=...); for maps "
            "(B, C, H, W), the channels: create_method('rotograd(dim=channel)', ..., feature_dim=C)"
        )
    if feature_dim is not None and not 1 <= side <= feature_dim:
        raise SpecError(f"size of rotate must be between 1 and feature_dim={feature_dim}, not {side}")
    if side % blocks:
        raise SpecError(f"blocks of rotate must divide the {side} rotated features, not {blocks}")
    return side
