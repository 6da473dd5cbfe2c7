"""FAMO: fast adaptive multitask optimization."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import log_losses
from mtlkit.weighting._forms.options import Numbers, per_task

_BETAS = (0.9, 0.999)
_EPS = 1e-8


@register_method("famo")
class FAMO(GradientAggregator):
    r"""Decrease all log-losses at about the same rate, from the loss values alone.

    .. math:: f = c \sum_k z_k \log(L_k - b_k), \qquad z = \operatorname{softmax}(\xi), \qquad
        c = \Big( \sum_k \frac{z_k}{L_k - b_k} \Big)^{-1}

    with c held constant, so the weights :math:`c\, z_k / (L_k - b_k)` sum to one. The logits :math:`\xi`
    follow the change of the log-losses by a step of Adam with weight decay :math:`\gamma`:

    .. math:: \delta_k = \log(L_k^{t} - b_k) - \log(L_k^{t+1} - b_k), \qquad
        \nabla_\xi = J_{softmax}(\xi)^\top \delta

    The losses must exceed their bounds. A loss at its bound takes no part in the step; one below it
    makes the total NaN. The total's gradient is that of f; its value is c, a weighted harmonic mean of
    the losses (where b is zero).

    Update scale: at equal losses every loss has the factor 1/K in the first step; the factors always sum
    to 1.

    Differences: the paper evaluates the losses of the same batch once more after the step, which is
    ``second_pass=True``. By default :math:`L^{t+1}` is the loss of the next step, which is computed
    anyway: no second forward pass. But the batch differs, so :math:`\delta` carries the noise of the
    batches. The logits and Adam's moments are state of the method, not parameters, so that no other
    optimizer moves them. A task that was absent keeps its logit and its moments, and without a second
    pass compares with its own last loss. The authors' code, LibMTL and TorchJD add 1e-8 to the losses.
    The authors' code also clips the norm of the shared gradient to 1; that is left to the training loop.

    Args:
        lr: learning rate of the logits; 0.025 in the authors' code, LibMTL and TorchJD.
        gamma: weight decay of the logits. 0.001 in LibMTL, TorchJD and the authors' script for QM9;
            0.01 in their package and their script for CelebA.
        min_losses: lower bounds :math:`b`, one per task or by name; zero by default.
        second_pass: move the logits only in ``method.update(losses)``, which is called after the
            optimizer's step with the losses of the same batch; :class:`mtlkit.Trainer` calls it.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("famo", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1.4000, 0.2000])
    """

    paper = "Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023"
    url = "https://arxiv.org/abs/2306.03792"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {"lr": LogUniform(0.005, 0.1), "gamma": LogUniform(1e-4, 1e-2)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        lr: Annotated[float, Ge(0)] = 0.025,
        gamma: Annotated[float, Ge(0)] = 1e-3,
        min_losses: Numbers | None = None,
        second_pass: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.lr = lr
        self.gamma = gamma
        self.min_losses = min_losses
        self.second_pass = second_pass
        self.add_constant("bounds", per_task("min_losses of famo", min_losses, self.tasks, 0.0))
        for name in ("logits", "first_moments", "second_moments", "last_logs"):
            self.add_state(name, 0.0)
        self.add_state("updates", 0)
        self.add_state("known", False)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        above, logs, active = _above_bounds(losses, state)
        if self.training and not self.second_pass:
            state = self._advance(logs, active, state)
        if self.training:
            known = active if self.second_pass else state.known | active
            state = state.replace(last_logs=torch.where(active, logs, state.last_logs), known=known)
        z = _softmax(state.logits, active)
        # dividing by the smallest loss keeps the quotients of order one
        least = torch.where(active, above, torch.inf).min()
        quotients = safe_divide(z * torch.where(torch.isinf(least), 1.0, least), above)
        return safe_divide(quotients, quotients.sum()), state

    def update(self, losses: Tensor, state: State) -> State:
        """Move the logits by the change of the losses of the same batch."""
        if not self.second_pass:
            return state
        _, logs, active = _above_bounds(losses, state)
        # compared losses are forgotten, so that another call changes nothing
        return self._advance(logs, active, state).replace(known=torch.zeros_like(state.known))

    def _advance(self, logs: Tensor, active: Tensor, state: State) -> State:
        """Compare the log-losses with the last ones and take a step of Adam on the logits."""
        moves = state.known & active
        change = torch.where(moves, state.last_logs - logs, 0.0)
        z = _softmax(state.logits, moves)
        gradient = z * (change - z @ change) + self.gamma * state.logits
        updates = state.updates + moves
        first = _BETAS[0] * state.first_moments + (1 - _BETAS[0]) * gradient
        second = _BETAS[1] * state.second_moments + (1 - _BETAS[1]) * gradient.square()
        count = updates.clamp(min=1).double()
        root = (second / (1 - _BETAS[1] ** count)).sqrt() + _EPS
        moved = state.logits - self.lr * first / (1 - _BETAS[0] ** count) / root
        return state.replace(
            logits=torch.where(moves, moved, state.logits),
            first_moments=torch.where(moves, first, state.first_moments),
            second_moments=torch.where(moves, second, state.second_moments),
            updates=updates,
        )


def _above_bounds(losses: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Losses minus their bounds, NaN below; their logarithms; and which of them are above."""
    above = losses.double() - state.bounds
    above = torch.where(above < 0, torch.nan, above)
    return above, *log_losses(above)


def _softmax(logits: Tensor, active: Tensor) -> Tensor:
    """Softmax over the active tasks; zeros where there is none."""
    shifted = torch.where(active | ~active.any(), logits, -torch.inf)
    return torch.where(active, shifted.softmax(dim=0), 0.0)
