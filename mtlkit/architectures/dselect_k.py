"""DSelect-k: a mixture of experts whose gates select k of them, differentiably."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.base import MethodLike, Tasks
from mtlkit.architectures.experts import MixtureOfExperts, mix, run_experts
from mtlkit.config import Count, Ge, Gt, register_architecture
from mtlkit.errors import SpecError


class DSelectGate(nn.Module):
    r"""Weights of n experts, at most k of which are not zero once the selectors are binary.

    Each of k selectors has :math:`m = \lceil \log_2 n \rceil` numbers, and the smooth step

    .. math:: S(t) = -\tfrac{2}{\gamma^3} t^3 + \tfrac{3}{2\gamma} t + \tfrac12
        \quad (|t| \le \gamma/2), \qquad 0 \text{ below}, 1 \text{ above}

    maps them to [0, 1]. Selector i weighs expert j by the product of its bits, or of one minus the bit,
    along the binary code of j. The results of the selectors are averaged with softmax weights. The
    entropy of a selector is zero when its bits are binary; :meth:`penalty` is minimized with the loss.
    """

    codes: Tensor

    def __init__(self, experts: int, k: int, gamma: float, inputs: int | None) -> None:
        super().__init__()
        self.experts, self.k, self.gamma = experts, k, gamma
        self.bits = max(1, (experts - 1).bit_length())
        code = torch.arange(experts)[:, None] >> torch.arange(self.bits)[None, :]
        self.register_buffer("codes", (code & 1).bool(), persistent=False)  # (n, m)
        self.selectors: nn.Linear | None = None
        self.mixture: nn.Linear | None = None
        if inputs is None:
            self.z = nn.Parameter(torch.empty(k, self.bits).uniform_(-gamma / 100, gamma / 100))
            self.alpha = nn.Parameter(torch.empty(k).uniform_(-0.05, 0.05))
        else:
            self.selectors = nn.Linear(inputs, k * self.bits, bias=False)
            self.mixture = nn.Linear(inputs, k, bias=False)
            nn.init.uniform_(self.selectors.weight, -gamma / 100, gamma / 100)

    def forward(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return weights (n,) or (B, n), and the results of the selectors (k, n) or (B, k, n)."""
        if self.selectors is None or self.mixture is None:
            z, alpha = self.z, self.alpha
        else:
            assert x is not None
            z, alpha = self.selectors(x).unflatten(-1, (self.k, self.bits)), self.mixture(x)
        on = self._smooth_step(z).unsqueeze(-2)  # (..., k, 1, m)
        selected = torch.where(self.codes, on, 1 - on).prod(dim=-1)  # (..., k, n)
        weights = (alpha.softmax(dim=-1).unsqueeze(-1) * selected).sum(dim=-2)
        return weights, selected

    def _smooth_step(self, t: Tensor) -> Tensor:
        gamma = self.gamma
        inside = t.clamp(-gamma / 2, gamma / 2)
        return -2 / gamma**3 * inside**3 + 3 / (2 * gamma) * inside + 0.5

    def penalty(self, selected: Tensor) -> Tensor:
        """Return the term that drives the selectors to binary values, minimized with the loss."""
        # the derivative of the entropy is infinite at zero, which would make the gradient NaN
        floor = torch.finfo(selected.dtype).tiny
        penalty: Tensor = torch.special.entr(selected.clamp_min(floor)).sum(dim=(-2, -1))
        if self.experts < 2**self.bits:
            # some codes belong to no expert: keep the selectors on those that do
            penalty = penalty + selected.sum(dim=-1).clamp_min(1e-6).reciprocal().sum(dim=-1)
        return penalty.mean()


@register_architecture("dselect_k")
class DSelectK(MixtureOfExperts):
    """MMoE with gates that learn which k experts a task uses.

    The entropy term is an auxiliary loss: add ``model.auxiliary_loss()`` to the total, as the Trainer
    does. The experts' outputs are forked, as in MMoE.

    Args:
        experts: number of experts.
        k: number of experts that a task selects.
        gate: ``static``, one selection per task; or ``input``, one for every sample.
        gamma: width of the smooth step.
        entropy: weight of the entropy term.
    """

    paper = "Hazimeh et al., DSelect-k: Differentiable Selection in the Mixture of Experts, NeurIPS 2021"
    year = 2021

    def __init__(
        self,
        tasks: Tasks,
        *,
        experts: Count = 4,
        k: Count = 2,
        gate: Literal["static", "input"] = "static",
        gamma: Annotated[float, Gt(0)] = 1.0,
        entropy: Annotated[float, Ge(0)] = 0.01,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if k > experts:
            raise SpecError(f"k of dselect_k must be 1 to {experts} (the number of experts), not {k}")
        self.entropy = entropy
        self.gate_kind = gate
        self.experts = self.make_experts(experts)
        inputs = self.input_dim if gate == "input" else None
        self.gates = self.by_task({task: DSelectGate(experts, k, gamma, inputs) for task in self.tasks})
        self.finish(method)

    def encode(self, inputs: Any) -> tuple[Tensor | None, Tensor]:
        """Return the backbone's features, if the gates read them, and the outputs (B, n, d)."""
        below = self.bottom(inputs)
        outputs = run_experts(self.experts, inputs if below is None else below)
        return (below if self.gate_kind == "input" else None), outputs

    def predict(self, task: str, shared: tuple[Tensor | None, Tensor], inputs: Any) -> Any:
        """Return the head's output on the task's selection; its entropy is an auxiliary loss."""
        below, outputs = shared
        given = None
        if self.gate_kind == "input":
            given = inputs.flatten(1) if below is None else below
        gate: Any = self.of_task(self.gates, task)
        weights, selected = gate(given)
        if self.training:
            self.add_auxiliary(self.entropy * gate.penalty(selected))
        return self.head(task)(mix(weights, outputs))
