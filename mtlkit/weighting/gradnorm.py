"""GradNorm: learn weights that balance the training rates of the tasks."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import LR_RATIO, Ge, LogUniform, Uniform, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("gradnorm")
class GradNorm(GradientAggregator):
    r"""Learn task weights so that slow tasks get larger gradients.

    The weights are trained by the user's optimizer on

    .. math:: \sum_k \big|\, w_k \|G_k\| - \bar G\, r_k^{\alpha} \,\big|, \qquad
        \bar G = \frac1K \sum_k w_k \|G_k\|, \quad
        r_k = \frac{L_k / L_k^0}{\frac1K \sum_i L_i / L_i^0}

    with the target :math:`\bar G r_k^\alpha` held constant, and are rescaled to sum to K after every
    step of the optimizer. A weight that a large step made negative is set to zero. :math:`L_k^0` is the
    first loss that is not zero.

    The method never writes to the parameter ``task_weights``: it adds the optimizer's updates to weights
    of its own. So the parameter itself does not sum to K; ``stats.weights`` and ``balanced`` have the
    weights. Weight decay would pull the parameter to zero, and not the weights; use none.

    Update scale: K identical gradients g merge to K g in the first step; the weights always sum to the
    number of tasks present.

    Differences: as in the RotoGrad paper's comparison, the weights act on the gradients of the shared
    features, and each head follows its own loss. The GradNorm paper's total loss weighs the heads too.
    In LibMTL the weights are K times a softmax of free parameters, learn from the second epoch on, and
    :math:`L_k^0` is the mean loss of the first epoch. TorchJD does not have the method.

    Args:
        alpha: how strongly the training rates are pulled together; 0 equalizes the norms. 1.5 in the
            paper's experiments on NYUv2, and in LibMTL.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("gradnorm", tasks=2).combine(grads, torch.tensor([1.0, 4.0]))
        tensor([1., 1.])
    """

    paper = (
        "Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask "
        "Networks, ICML 2018"
    )
    url = "https://arxiv.org/abs/1711.02257"
    idea = "Gradient balancing: no task dominates by its size"
    reads_angles = False
    uses_losses = True
    search_space = {"alpha": Uniform(0.0, 2.0), LR_RATIO: LogUniform(0.05, 2.0)}

    def __init__(self, tasks: Tasks, *, alpha: Annotated[float, Ge(0)] = 1.5, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.alpha = alpha
        self.add_learned("task_weights", 1.0)
        # the weights after the optimizer's updates up to `applied`, rescaled to sum to K each time
        self.add_state("balanced", 1.0)
        self.add_state("applied", 1.0)
        self.add_state("initial_losses", 0.0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        weights = self._balance(state)
        new = state.replace(
            balanced=weights * state.balanced.mean(),  # absent tasks keep theirs
            applied=state.task_weights.detach().double(),
        )
        if "losses" in vars(state):
            new = new.replace(initial_losses=self._initial_losses(state))
        return weights, new

    def learn(self, gram: Tensor, state: State) -> Mapping[str, Tensor]:
        r"""Return :math:`\|G_k\| \operatorname{sign}(w_k \|G_k\| - \bar G r_k^\alpha)`."""
        norms = norms_of(gram)
        weighted = self._balance(state) * norms
        rates = safe_divide(state.losses.double(), self._initial_losses(state))
        relative = safe_divide(rates, rates.mean()).clamp(min=0)
        target = weighted.mean() * relative**self.alpha
        return {"task_weights": norms * torch.sign(weighted - target)}

    def _balance(self, state: State) -> Tensor:
        """Apply the optimizer's last update, and rescale the weights to mean one."""
        moved = (state.balanced + state.task_weights.detach() - state.applied).clamp(min=0)
        return torch.where(moved.mean() > 0, safe_divide(moved, moved.mean()), 1.0)

    def _initial_losses(self, state: State) -> Tensor:
        return torch.where(state.initial_losses == 0, state.losses.double(), state.initial_losses)
