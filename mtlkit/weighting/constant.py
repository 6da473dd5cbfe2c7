"""Fixed weights of the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError, unknown_name
from mtlkit.registry import register_method
from mtlkit.weighting.base import GradientAggregator, Tasks

__all__ = ["Constant"]


@register_method("constant")
class Constant(GradientAggregator):
    r"""Weigh the losses by fixed factors: :math:`\sum_k c_k L_k`, heads included.

    Args:
        weights: one number per task in task order, or a mapping from task names; tasks that a
            mapping does not name keep the factor one.
    """

    factors: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.given = weights
        if weights is None:
            factors = [1.0] * len(self.tasks)
        elif isinstance(weights, Mapping):
            for key in weights:
                if str(key) not in self.tasks:
                    raise unknown_name("task", str(key), self.tasks)
            named = {str(key): value for key, value in weights.items()}
            factors = [named.get(name, 1.0) for name in self.tasks]
        else:
            factors = list(weights)
        numbers = all(isinstance(f, int | float) and not isinstance(f, bool) for f in factors)
        if len(factors) != len(self.tasks) or not numbers:
            raise SpecError(
                f"weights of constant must be {len(self.tasks)} numbers, one per task "
                f"({', '.join(self.tasks)}), not {weights!r}"
            )
        values = torch.tensor(factors, dtype=torch.float64)
        self.register_buffer("factors", values, persistent=False)

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """The given factors."""
        factors = self.factors if step is None else step.pick(self.factors)
        return factors.to(losses.dtype)

    def _own_spec(self) -> Any:
        from mtlkit.spec import Part

        return Part(self.name, {} if self.given is None else {"weights": self.given})
