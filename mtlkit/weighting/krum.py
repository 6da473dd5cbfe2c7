"""Krum: keep the gradients that agree best with their neighbors."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.errors import SpecError
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("krum")
class Krum(GradientAggregator):
    r"""Take the mean of the gradients that are nearest to their neighbors.

    The score of a task is the sum of the squared distances to its :math:`K - f - 2` nearest others, at
    least one,

    .. math:: s_k = \sum_{j \in N(k)} \|G_k - G_j\|^2

    and the ``n_selected`` tasks of lowest score are averaged (Multi-Krum; one is Krum).

    Update scale: K identical gradients g merge to g.

    Differences: the paper selects among workers, of which some are adversarial; this selects among
    tasks. Tasks that tie for the last places share them, so that the order of the tasks does not matter:
    of three tasks, the two that are nearest to each other always tie. TorchJD adds the distances
    themselves, the paper their squares. LibMTL does not have the method.

    Args:
        n_byzantine: number f of gradients that are not to be trusted; needs f + 3 tasks. TorchJD has no
            default, and needs f + 3 tasks also for f = 0.
        n_selected: number of gradients that are averaged.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-9.0, 9.0]])
        >>> mtlkit.create_method("krum(n_selected=2)", tasks=3).combine(grads)
        tensor([1.5000, 0.5000])
    """

    paper = (
        "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, "
        "NeurIPS 2017"
    )
    url = "https://arxiv.org/abs/1703.02757"
    idea = "Robust against outliers, and references"

    def __init__(
        self,
        tasks: Tasks,
        *,
        n_byzantine: Annotated[int, Ge(0)] = 0,
        n_selected: Annotated[int, Ge(1)] = 1,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        count = len(self.tasks)
        if n_byzantine > 0 and count < n_byzantine + 3:
            raise SpecError(
                f"n_byzantine of krum must be between 0 and the number of tasks minus 3 "
                f"({count} tasks), not {n_byzantine}"
            )
        if n_selected > count:
            raise SpecError(f"n_selected of krum must be between 1 and {count} tasks, not {n_selected}")
        self.n_byzantine = n_byzantine
        self.n_selected = n_selected

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        count = len(gram)
        if count == 1:
            return torch.ones_like(gram[0]), state
        exact = gram.double()
        squares = exact.diagonal()
        distances = torch.add(squares[:, None] + squares, exact, alpha=-2)
        # beside the distance to itself, which is zero
        neighbors = min(max(count - self.n_byzantine - 2, 1), count - 1)
        scores = distances.sort(dim=1).values[:, : neighbors + 1].sum(dim=1)
        selected = min(self.n_selected, count)
        last = scores.sort().values[selected - 1]
        # distances are known to the rounding of the squares that they are differences of
        slack = 8 * eps_of(gram) * neighbors * squares.max()
        sure, tied = scores < last - slack, (scores - last).abs() <= slack
        places = selected - sure.sum()
        return ((sure + tied * (places / tied.sum())) / selected).to(gram.dtype), state
