"""ExcessMTL: weigh the tasks by how far each is from what it could reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.host import Matrix, as_array
from mtlkit.junction import Step
from mtlkit.registry import register_method
from mtlkit.weighting.base import Tasks
from mtlkit.weighting.simplex import SimplexWeights
from mtlkit.weighting.solvers import safe_divide

__all__ = ["ExcessMTL"]


@register_method("excess_mtl")
class ExcessMTL(SimplexWeights):
    r"""Give more weight to the tasks with the larger estimated excess risk.

    .. math:: w_k \propto w_k \exp(\eta\, E_k / E_k^0), \qquad
        E_k = G_k^\top H_k^{-1} G_k, \quad H_k = \Big(\sum_{\tau \le t} \|G_k^\tau\|^2\Big)^{1/2} I

    where :math:`E_k^0` is the mean over the first ``warmup`` steps, during which the weights are 1/K. A
    noisy label raises a task's loss but not its excess risk, so such a task does not take over.

    Needs: features; the Gram matrix.

    Differences: the paper's :math:`H_k` is AdaGrad's diagonal, a sum of squares per parameter and
    task. A feature's gradient belongs to one sample of one batch and has no counterpart in the next,
    so this is AdaGrad's norm version: one sum per task, read off the Gram matrix. It weighs all
    coordinates alike, and its state is K numbers in place of K copies of the shared parameters. The
    weights sum to one, as in the paper; in the authors' code they sum to K.

    Args:
        eta: step size of the weights.
        warmup: number of steps that set the scale of each task: one in the authors' code, and three
            epochs in the paper's appendix.
    """

    paper = "He et al., Robust Multi-Task Learning with Excess Risks, ICML 2024"
    year = 2024

    squares: Tensor
    baseline: Tensor
    seen: Tensor

    def __init__(self, tasks: Tasks, *, eta: float = 1.0, warmup: int = 1, **common: Any) -> None:
        super().__init__(tasks, **common)
        if not eta > 0:
            raise SpecError(f"eta of excess_mtl must be positive, not {eta}")
        if warmup < 1:
            raise SpecError(f"warmup of excess_mtl must be 1 or more, not {warmup}")
        self.eta = eta
        self.warmup = warmup
        count = len(self.tasks)
        self.register_buffer("squares", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("baseline", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(count, dtype=torch.long))

    def move(self, shares: Matrix, gram: Matrix, step: Step | None) -> Matrix:
        """One step of exponentiated gradient ascent."""
        squares, baseline, seen = self._state(step)
        if (seen < self.warmup).any():
            return shares
        excess = self._excess(gram, squares)[0]
        with np.errstate(divide="ignore"):  # a share may be zero
            exponents = np.log(shares) + self.eta * safe_divide(excess, baseline / self.warmup, np)
        moved: Matrix = np.exp(exponents - exponents.max())
        return moved / moved.sum()

    def update(self, step: Step) -> None:
        """Keep the weights, the sums of squares and the baselines."""
        super().update(step)
        squares, baseline, seen = self._state(step)
        excess, squares = self._excess(as_array(step.gram), squares)
        baseline = np.where(seen < self.warmup, baseline + excess, baseline)
        self.remember("baseline", baseline, step)
        self.remember("squares", squares, step)
        self.count("seen", step)

    def _state(self, step: Step | None) -> tuple[Matrix, Matrix, Matrix]:
        state = (self.squares, self.baseline, self.seen)
        squares, baseline, seen = (as_array(s if step is None else step.pick(s)) for s in state)
        return squares, baseline, seen

    def _excess(self, gram: Matrix, squares: Matrix) -> tuple[Matrix, Matrix]:
        """Excess risks, and the sums of squares with this step's."""
        squares = squares + gram.diagonal()
        return safe_divide(gram.diagonal(), np.sqrt(squares), np), squares
