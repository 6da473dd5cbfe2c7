"""FAMO: fast adaptive multitask optimization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError
from mtlkit.registry import register_method
from mtlkit.weighting.base import Tasks
from mtlkit.weighting.scalarization import Numbers, Scalarization, log_losses, per_task
from mtlkit.weighting.solvers import safe_divide

__all__ = ["FAMO"]

_BETAS = (0.9, 0.999)
_EPS = 1e-8


@register_method("famo")
class FAMO(Scalarization):
    r"""Let all log-losses fall at about the same rate, from the loss values alone.

    .. math:: f = c \sum_k z_k \log(L_k - b_k), \qquad z = \operatorname{softmax}(\xi), \qquad
        c = \Big( \sum_k \frac{z_k}{L_k - b_k} \Big)^{-1}

    so the weights :math:`c\, z_k / (L_k - b_k)` are convex. The logits :math:`\xi` follow the change
    of the log-losses by a step of Adam with weight decay :math:`\gamma`:

    .. math:: \delta_k = \log(L_k^{t} - b_k) - \log(L_k^{t+1} - b_k), \qquad
        \nabla_\xi = J_{softmax}(\xi)^\top \delta

    Needs: the values of the losses, which must exceed their bounds. A loss at its bound takes no part
    in the step; one below it makes the total NaN.

    Differences: the paper evaluates the losses of the same batch once more after the step. Here
    :math:`L^{t+1}` is the loss of the next step, which is computed anyway: no second forward pass (and
    no second update of BatchNorm's averages), but the batch differs, so :math:`\delta` carries the
    noise of the batches; given the same batch twice, it is the paper's. The logits, Adam's
    moments included, are state of the method, not parameters: no other optimizer must move them. A
    task that was absent keeps its logit, and compares with its own last loss. The total's gradient is
    that of f; its value is c, a weighted harmonic mean of the losses (where b is zero). The authors'
    code also clips the norm of the shared gradient to 1; that is left to the training loop.

    Args:
        lr: learning rate of the logits.
        gamma: weight decay of the logits; 0.001 as in LibMTL and TorchJD, 0.01 in the authors' package.
        min_losses: lower bounds :math:`b`, one per task or by name; zero by default.
    """

    paper = "Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023"
    year = 2023

    logits: Tensor
    first_moments: Tensor
    second_moments: Tensor
    updates: Tensor
    last_logs: Tensor
    known: Tensor
    _bounds: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        lr: float = 0.025,
        gamma: float = 1e-3,
        min_losses: Numbers | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        for option, value in (("lr", lr), ("gamma", gamma)):
            if not 0 <= value < torch.inf:
                raise SpecError(f"{option} of famo must be 0 or more, not {value}")
        bounds = per_task("min_losses of famo", min_losses, self.tasks, 0.0)
        self.lr = lr
        self.gamma = gamma
        self.min_losses = min_losses
        self.register_buffer("_bounds", torch.tensor(bounds, dtype=torch.float64), persistent=False)
        for name in ("logits", "first_moments", "second_moments", "last_logs"):
            self.register_buffer(name, torch.zeros(len(self.tasks), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros(len(self.tasks), dtype=torch.long))
        self.register_buffer("known", torch.zeros(len(self.tasks), dtype=torch.bool))

    def scalarize(self, losses: Tensor, step: Any = None) -> tuple[Tensor, Tensor]:
        """The weighted log-losses and the convex weights, after the logits have moved."""
        state = self._advance(losses, step) if self.training else {}
        logits = state.get("logits", self._pick("logits", step))
        above = self._above(losses, step)
        logs, active = log_losses(above)
        shares = _softmax(logits, active)
        # the least loss makes the quotients of order one
        least = torch.where(active, above, torch.inf).min()
        least = torch.where(torch.isinf(least), 1.0, least)
        quotients = safe_divide(shares * least, above)
        total = torch.where(active.any(), quotients.sum(), 1.0)
        return (shares * logs).sum() * least / total, quotients / total

    def loss_penalty(self, losses: Tensor, step: Any = None) -> None:
        """None: c, the weighted harmonic mean of the losses, tells more than f does."""

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Keep the logits, Adam's state and the log-losses."""
        for name, value in self._advance(losses, step).items():
            self.remember(name, value, step)

    def _advance(self, losses: Tensor, step: Any) -> dict[str, Tensor]:
        """State after the losses of this step have been compared with the last ones."""
        logs, active = log_losses(self._above(losses, step))
        logits, known = self._pick("logits", step), self._pick("known", step)
        last = self._pick("last_logs", step)
        moves = known & active
        change = torch.where(moves, last - logs, 0.0)
        shares = _softmax(logits, moves)
        gradient = shares * (change - shares @ change) + self.gamma * logits
        updates = self._pick("updates", step) + moves
        first = _BETAS[0] * self._pick("first_moments", step) + (1 - _BETAS[0]) * gradient
        second = _BETAS[1] * self._pick("second_moments", step) + (1 - _BETAS[1]) * gradient.square()
        count = updates.clamp(min=1).double()
        root = (second / (1 - _BETAS[1] ** count)).sqrt() + _EPS
        moved = logits - self.lr * first / (1 - _BETAS[0] ** count) / root
        return {
            "logits": torch.where(moves, moved, logits),
            "first_moments": torch.where(moves, first, self._pick("first_moments", step)),
            "second_moments": torch.where(moves, second, self._pick("second_moments", step)),
            "updates": updates,
            "last_logs": torch.where(active, logs, last),
            "known": known | active,
        }

    def _above(self, losses: Tensor, step: Any) -> Tensor:
        return losses.double() - self._pick("_bounds", step)

    def _pick(self, name: str, step: Any) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer if step is None else step.pick(buffer)


def _softmax(logits: Tensor, active: Tensor) -> Tensor:
    """Softmax over the active tasks; zeros where there is none."""
    shifted = torch.where(active, logits, -torch.inf)
    shifted = torch.where(active.any(), shifted, torch.zeros_like(logits))
    return torch.where(active, shifted.softmax(dim=0), 0.0)
