"""STCH: smooth Tchebycheff scalarization."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Ge, Gt, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.losses import inverse_losses, log_losses
from mtlkit.weighting._forms.scalarization import PreferredScalarization


@register_method("stch")
class STCH(PreferredScalarization):
    r"""Minimize a smooth maximum of the losses, so that the worst task counts most.

    .. math:: f = \mu \log \sum_k \exp\Big( \frac{y_k}{\mu} \Big), \qquad
        y_k = \lambda_k \log \frac{L_k}{n_k}, \qquad
        w_k = \operatorname{softmax}(y / \mu)_k \frac{\partial y_k}{\partial L_k}

    f tends to the largest :math:`y_k` as :math:`\mu \to 0`, and the gradient to that of the mean of
    all as :math:`\mu \to \infty`. With equal preferences and :math:`\mu = 1`, f is :math:`\log \sum_k
    L_k / n_k`, which has the direction of fixed weights :math:`1/n_k`. In the first ``warmup`` steps
    :math:`\frac1K \sum_k \lambda_k \log L_k` is minimized; :math:`n_k` is the mean loss in the second
    half of them. Without warm-up, :math:`n_k = 1`.

    The losses must be positive: a loss of zero takes no part in the step, a negative one makes the total
    NaN. With ``transform=none`` that holds for the warm-up alone.

    Update scale: at equal losses L every loss has the factor 1/(K L) in the warm-up, and after it where
    the :math:`n_k` are equal.

    Differences: the paper's definition is on the losses as they are, ``transform=none``; its multi-task
    experiments, LibMTL and the default here use their logarithms. The paper's preferences
    :math:`\lambda` sum to one; here they have mean one over the present tasks, so that :math:`\mu`
    means the same for any number of tasks. It is K times that of the paper's definition, and that of
    the authors' multi-task code, which has no preferences. This code and LibMTL multiply f by K. The
    ideal point is zero.

    Args:
        mu: smoothness; the smaller, the more only the worst task counts. The default is that of the
            authors' multi-task code and of LibMTL. TorchJD has no default.
        warmup: number of steps before the smooth maximum is used, counted for each task; while a present
            task has seen fewer, all are in the warm-up. The authors' code and LibMTL warm up for five
            epochs and take :math:`n_k` from the last of them.
        transform: ``log``, or ``none`` for :math:`y_k = \lambda_k L_k / n_k`.
        preference: numbers of zero or more, one per task or by name; equal by default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("stch", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([0.8750, 0.1250])
    """

    paper = "Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization, ICML 2024"
    url = "https://arxiv.org/abs/2402.19078"
    idea = "A chosen point of the Pareto front"
    search_space = {"mu": LogUniform(0.1, 5.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        mu: Annotated[float, Gt(0)] = 1.0,
        warmup: Annotated[int, Ge(0)] = 100,
        transform: Literal["log", "none"] = "log",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.mu = mu
        self.warmup = warmup
        self.transform = transform
        self.add_state("nadir_sums", 0.0)
        self.add_state("seen", 0)

    def scalarize(self, losses: Tensor, state: State) -> tuple[Tensor, Tensor]:
        preference = safe_divide(state.weighting, state.weighting.mean())
        counted = max(self.warmup - self.warmup // 2, 1)
        known = (state.seen >= self.warmup) & (state.nadir_sums > 0)
        nadir = torch.where(known, state.nadir_sums / counted, 1.0)
        exact = losses.double()
        logs, active = log_losses(losses)
        log_derivatives = preference * inverse_losses(losses)
        if self.transform == "log":
            values, derivatives = preference * (logs - nadir.log()), log_derivatives
            values = torch.where(active, values, -torch.inf)
        else:
            values, derivatives = preference * exact / nadir, preference / nadir
        largest = values.max()
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        exponentials = torch.exp((values - largest) / self.mu)  # at most one: nothing overflows
        total = torch.where(active.any(), exponentials.sum(), 1.0)
        smooth = largest + self.mu * total.log()
        warm = (state.seen < self.warmup).any()
        mean = (preference * logs).sum() / len(losses)
        return (
            torch.where(warm, mean, smooth),
            torch.where(warm, log_derivatives / len(losses), exponentials / total * derivatives),
        )

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        """Return partial derivatives, and add up the losses of the warm-up's second half."""
        weights, _ = super().weigh_losses(losses, state)
        counts = (state.seen >= self.warmup // 2) & (state.seen < self.warmup)
        sums = torch.where(counts, state.nadir_sums + losses.double(), state.nadir_sums)
        return weights, state.replace(nadir_sums=sums, seen=state.seen + 1)
