"""Nash-MTL: the tasks bargain over the direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks
from mtlkit.weighting.solvers import bargaining_weights, precision, safe_divide, solve

__all__ = ["NashMTL"]


@register_method("nash_mtl")
class NashMTL(GradientAggregator):
    r"""Follow the Nash bargaining solution of the tasks.

    The merged gradient :math:`d = \sum_k w_k G_k` maximises :math:`\sum_k \log \langle G_k, d
    \rangle` in a ball, so that the weights solve

    .. math:: \mathbf{G}\, w = 1 / w, \qquad w > 0

    with the Gram matrix :math:`\mathbf{G}`. Needs the Gram matrix only. The weights are the unique
    minimum of the convex :math:`\frac12 w^\top \mathbf{G} w - \sum_k \log w_k` and are found by Newton's
    method; the authors' code, LibMTL and TorchJD solve a sequence of conic programs, 20 at most by
    default, and stop at a residual of 0.001.

    From the equation, :math:`\|d\| = \sqrt K` whatever the length of the gradients. The authors'
    code divides the Gram matrix by its norm first and clips :math:`\|d\|` to ``max_norm=1``; give
    ``max_norm=1`` to have the same bound here. A task whose gradient is zero gets weight zero; where
    a positive combination of the gradients vanishes (a Pareto stationary point) the equation has no
    solution and d is zero.

    Args:
        update_every: solve at every so-many-th step only and keep the weights in between.
        max_norm: bound of the merged gradient's norm; None, or 0, for none.
    """

    paper = "Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022"
    year = 2022
    traceable = False
    waived_laws = {
        "single_task": "a single task bargains alone and gets the unit vector along its gradient",
    }

    kept: Tensor
    age: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        update_every: int = 1,
        max_norm: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if update_every < 1:
            raise SpecError(f"update_every of nash_mtl must be 1 or more, not {update_every}")
        if max_norm is not None and not max_norm >= 0:
            raise SpecError(f"max_norm of nash_mtl must be 0 or more, or None, not {max_norm}")
        self.update_every = update_every
        self.max_norm = max_norm
        # a negative weight has not been bargained for yet
        self.register_buffer("kept", torch.full((len(self.tasks),), -1.0, dtype=torch.float64))
        self.register_buffer("age", torch.tensor(0))

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The bargaining solution, or the one kept, clipped."""
        weights = self._solution(gram, step)
        if not self.max_norm:
            return weights
        exact = weights.double()
        norm = (exact @ gram.double() @ exact).clamp(min=0).sqrt()
        clipped = safe_divide(exact * self.max_norm, norm)
        return torch.where(norm > self.max_norm, clipped, exact).to(gram)

    def update(self, step: Step) -> None:
        """Keep the weights for the steps that do not solve."""
        if self.update_every > 1:
            self.remember("kept", self._solution(step.gram, step), step)
            self.count("age", step)

    def _solution(self, gram: Tensor, step: Step | None) -> Tensor:
        kept = self.kept if step is None else step.pick(self.kept)
        if int(self.age) % self.update_every == 0 or bool((kept < 0).any()):
            return solve(bargaining_weights, gram, 1.0, precision(gram))
        return kept.to(gram)
