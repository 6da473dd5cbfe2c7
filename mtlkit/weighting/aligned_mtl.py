"""Aligned-MTL: independent component alignment."""

from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Choice, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.options import PreferredMerge


@register_method("aligned_mtl")
class AlignedMTL(PreferredMerge):
    r"""Replace the task gradients by the nearest orthogonal ones of equal length, and add them.

    With the gradient matrix :math:`U \Sigma V^\top` (tasks in columns), the aligned gradients are
    :math:`\sigma\, U V^\top`, of condition number 1. So the weights are

    .. math:: w = \sigma\, V \Sigma^{-1} V^\top \mathbf{1}

    Only the eigenvalues of the Gram matrix are needed. Singular values that are zero to rounding
    (linearly dependent gradients) are dropped. Where all gradients are zero, the weights are the
    preference, by default one.

    Update scale: K identical gradients g merge to K g.

    Differences: none from the paper. The authors' code and LibMTL add the aligned gradients too;
    TorchJD takes their mean. All have ``min`` as default; LibMTL has no other.

    Args:
        scale_mode: what :math:`\sigma` is: ``min``, the smallest singular value (the paper's choice),
            ``median`` (the lower one of an even number), or ``rmse``, the root of the mean eigenvalue.
        preference: numbers p of zero or more, one per task or by name, that take the place of
            :math:`\mathbf{1}` in the weights; tasks that a mapping does not name have 1. Named
            ``pref_vector`` in TorchJD.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("aligned_mtl", tasks=2).combine(grads)
        tensor([0.5528, 1.1056])
    """

    paper = "Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023"
    url = "https://arxiv.org/abs/2305.19000"
    idea = "Remove conflicts: project or turn gradients"
    search_space = {"scale_mode": Choice("min", "median", "rmse")}

    def __init__(
        self,
        tasks: Tasks,
        *,
        scale_mode: Literal["min", "median", "rmse"] = "min",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.scale_mode = scale_mode

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        values, vectors = torch.linalg.eigh(gram.double())
        kept = values > values[-1] * len(gram) * eps_of(gram)
        inverse = torch.where(kept, values.rsqrt(), 0.0)
        weights = (vectors * inverse) @ (state.preferred @ vectors) * self._scale(values, kept)
        return torch.where(values[-1] > 0, weights, state.preferred).to(gram.dtype), state

    def _scale(self, values: Tensor, kept: Tensor) -> Tensor:
        """The common length; undefined where no value is kept."""
        if self.scale_mode == "min":
            return torch.where(kept, values, values[-1]).min().sqrt()
        rank = kept.sum()
        if self.scale_mode == "rmse":
            return (torch.where(kept, values, 0.0).sum() / rank).sqrt()
        # values ascend, and those that are kept come last
        middle = len(values) - rank + torch.div(rank - 1, 2, rounding_mode="floor")
        return values.gather(0, middle.clamp(0, len(values) - 1).reshape(1))[0].sqrt()
