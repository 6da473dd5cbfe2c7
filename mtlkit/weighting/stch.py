"""STCH: smooth Tchebycheff scalarization."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import Tasks
from mtlkit.weighting.scalarization import PreferredScalarization, log_losses
from mtlkit.weighting.solvers import safe_divide

__all__ = ["STCH"]


@register_method("stch")
class STCH(PreferredScalarization):
    r"""Minimise a smooth maximum of the losses, so that the worst task counts most.

    .. math:: f = \mu \log \sum_k \exp\Big( \frac{y_k}{\mu} \Big), \qquad
        y_k = \lambda_k \log \frac{L_k}{n_k}, \qquad
        w_k = \operatorname{softmax}(y / \mu)_k \frac{\partial y_k}{\partial L_k}

    f tends to the largest :math:`y_k` as :math:`\mu \to 0`, and the gradient to that of the mean of
    all as :math:`\mu \to \infty`. In the first ``warmup`` steps :math:`\frac1K \sum_k y_k` is minimised
    (whose gradient needs no :math:`n_k`); :math:`n_k` is the mean loss in the second half of them.
    Without warm-up, :math:`n_k = 1`.

    Needs: the values of the losses, which must be positive. A loss of zero takes no part in the
    step; a negative one makes the total NaN.

    Differences: the paper's definition is on the losses as they are, ``transform=none``; its
    multi-task experiments, LibMTL and the default here use their logarithms. The preferences
    :math:`\lambda` have mean one over the present tasks, not sum one, so :math:`\mu` is K times the
    paper's and means the same for any number of tasks. LibMTL multiplies f by K. The ideal point is
    zero.

    Args:
        mu: smoothness; the smaller, the more only the worst task counts.
        warmup: steps before the smooth maximum is used.
        transform: ``log``, or ``none`` for :math:`y_k = \lambda_k L_k / n_k`.
        preference: numbers of zero or more, one per task or by name; equal by default.
    """

    paper = "Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization, ICML 2024"
    year = 2024

    nadir_sums: Tensor
    seen: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        mu: float = 0.5,
        warmup: int = 100,
        transform: Literal["log", "none"] = "log",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if not 0 < mu < torch.inf:
            raise SpecError(f"mu of stch must be positive, not {mu}")
        if warmup < 0:
            raise SpecError(f"warmup of stch must be 0 steps or more, not {warmup}")
        if transform not in ("log", "none"):
            raise SpecError(f"transform of stch must be 'log' or 'none', not {transform!r}")
        self.mu = mu
        self.warmup = warmup
        self.transform = transform
        self.register_buffer("nadir_sums", torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(len(self.tasks), dtype=torch.long))

    def scalarize(self, losses: Tensor, step: Any = None) -> tuple[Tensor, Tensor]:
        """The smooth maximum and its derivatives; those of the mean of logarithms in the warm-up."""
        preference = self._preference_of(step)
        preference = safe_divide(preference, preference.mean())
        sums, seen = (
            buffer if step is None else step.pick(buffer) for buffer in (self.nadir_sums, self.seen)
        )
        warm = (seen < self.warmup).any()
        counted = self.warmup - self.warmup // 2
        known = (seen >= self.warmup) & (sums > 0)
        nadir = torch.where(known, sums / max(counted, 1), torch.ones_like(sums))
        exact = losses.double()
        logs, active = log_losses(losses)
        log_slopes = preference * safe_divide(torch.ones_like(exact), exact)
        if self.transform == "log":
            values, slopes = preference * (logs - nadir.log()), log_slopes
            values = torch.where(active, values, -torch.inf)
        else:
            values, slopes = preference * exact / nadir, preference / nadir
        largest = values.max()
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        excess = (values - largest) / self.mu  # at most zero, so that no exponential overflows
        shares = torch.exp(excess)
        total = torch.where(active.any(), shares.sum(), 1.0)
        smooth = largest + self.mu * total.log()
        mean = (preference * logs).sum() / len(losses)
        return (
            torch.where(warm, mean, smooth),
            torch.where(warm, log_slopes / len(losses), shares / total * slopes),
        )

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Count the warm-up's steps, and add the losses of its second half."""
        seen, sums = step.pick(self.seen), step.pick(self.nadir_sums)
        counts = (seen >= self.warmup // 2) & (seen < self.warmup)
        self.remember("nadir_sums", torch.where(counts, sums + losses.double(), sums), step)
        self.count("seen", step)
