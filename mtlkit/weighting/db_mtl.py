"""DB-MTL: balance the losses by a logarithm and the gradients by their norms."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Lt, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("db_mtl")
class DBMTL(GradientAggregator):
    r"""Minimize the logarithms of the losses, with task gradients of one length.

    The loss part replaces :math:`L_k` by :math:`\log L_k`, whose gradient is that of :math:`L_k`
    divided by its value (heads included). With ``wrt=parameters`` the merge is the paper's: it
    averages the gradients of these logarithms, coordinate by coordinate, and gives all averages the
    largest of their norms:

    .. math:: \Big(\max_j \|B_j\|\Big) \sum_k \frac{B_k}{\|B_k\|}, \qquad
        B_k \leftarrow \beta_t\, B_k + (1 - \beta_t)\, G_k, \quad \beta_t = \beta / t^\sigma

    B starts at zero, and t counts the steps in which the task is present. The state is K copies of the
    shared parameters, which have to be the same in every step.

    A feature's gradient belongs to one sample of one batch and has no counterpart in the next. So at
    the features only the norms are averaged, from the first norm on, and the directions are those of
    the step's own gradients:

    .. math:: \Big(\max_j n_j\Big) \sum_k \frac{G_k}{\|G_k\|}, \qquad
        n_k \leftarrow \beta_t\, n_k + (1 - \beta_t)\, \|G_k\|

    The losses must be positive. The value of ``total`` is the number of tasks, not the sum of the
    logarithms. A loss of zero has no logarithm and keeps its gradient; a task whose gradient (or
    average) is zero takes no part.

    Update scale: every loss has the factor 1/L. K identical gradients g merge to K g at the features.
    With ``wrt=parameters`` they merge to :math:`(1 - \beta) K g` in the first step, by default 0.1 K g,
    and approach K g in later ones.

    Differences: LibMTL's is the authors' code, with the same defaults. It adds 1e-8 to losses and
    norms; here zeros are treated as described above. TorchJD does not have the method.

    Args:
        beta: decay of the averages; 0 uses the current step alone. The paper chooses among 0.1, 0.5 and
            0.9 for each data set.
        beta_sigma: how fast ``beta`` itself decays with the steps; 0 keeps it constant (the paper also
            tries 0.5).

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("db_mtl", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([0.5858, 1.4142])
    """

    paper = (
        "Lin et al., Dual-Balancing for Multi-Task Learning, arXiv 2308.12029, 2023 (accepted by Neural "
        "Networks)"
    )
    url = "https://arxiv.org/abs/2308.12029"
    idea = "Gradient balancing: no task dominates by its size"
    reads_angles = False
    uses_losses = True
    search_space = {"beta": Choice(0.1, 0.5, 0.9), "beta_sigma": Choice(0.0, 0.5)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta_sigma: Annotated[float, Ge(0)] = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.beta = beta
        self.beta_sigma = beta_sigma
        self.needs_whole_gradients = self.wrt == "parameters"
        if self.needs_whole_gradients:
            self.add_state("averages", per="coordinate")
            self.waived_laws = {"single_task": "the average starts at zero, as in the paper"}
        else:
            self.add_state("norms", 0.0)
        self.add_state("seen", 0)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.where(losses == 0, 1.0, safe_divide(torch.ones_like(losses), losses.abs())), state

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Give every gradient the largest average norm."""
        norms = norms_of(gram)
        averages = torch.lerp(norms, state.norms, self._beta(state))
        averages = torch.where(state.norms == 0, norms, averages)
        weights = safe_divide(averages.max(), norms)
        return weights, state.replace(norms=averages, seen=state.seen + 1)

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """Average the gradients, and give all averages the largest of their norms."""
        averages = torch.lerp(grads, state.averages, self._beta(state).to(grads.dtype)[:, None])
        norms = averages.norm(dim=1)
        merged = safe_divide(norms.max(), norms) @ averages
        return merged, state.replace(averages=averages, seen=state.seen + 1)

    def _beta(self, state: State) -> Tensor:
        beta: Tensor = self.beta / (state.seen + 1).double() ** self.beta_sigma
        return beta
