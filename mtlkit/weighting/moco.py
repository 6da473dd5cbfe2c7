"""MoCo: multi-objective descent with gradient correction."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Gt, Le, LogUniform, Uniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.simplex import SimplexWeights, project_onto_simplex


@register_method("moco")
class MoCo(SimplexWeights):
    r"""Approach MGDA's weights slowly, on gradients that are averaged over steps.

    With ``wrt=parameters`` this is the paper's rule. The gradients are averaged coordinate by
    coordinate, and the merged gradient is :math:`\sum_k w_k Y_k`, of the averages:

    .. math:: Y \leftarrow Y + \beta_t\,(G - Y), \qquad
        w \leftarrow \Pi\big(w - \gamma_t\,(Y Y^\top + \rho I)\, w\big)

    with the projection :math:`\Pi` onto the simplex, :math:`\beta_t = \beta / t^{\sigma_\beta}` and
    :math:`\gamma_t = \gamma / t^{\sigma_\gamma}`. At the start Y is zero and w is 1/K; t counts the
    steps. The average and the weight of an absent task stay as they are. The state is K copies of the
    shared parameters, which have to be the same in every step.

    A feature's gradient belongs to one sample of one batch and has no counterpart in the next. So at the
    features the inner products are averaged, and the weights are applied to the step's own gradients:

    .. math:: \mathbf{Y} \leftarrow \mathbf{Y} + \beta_t\,(\mathbf{G} - \mathbf{Y}), \qquad
        w \leftarrow \Pi\Big(w - \gamma_t\,\Big(\frac{\mathbf{Y}}{\operatorname{mean}_k \mathbf{Y}_{kk}}
        + \rho I\Big)\, w\Big)

    with the Gram matrix :math:`\mathbf{G}`, which is also the first :math:`\mathbf{Y}`. The squared
    batch noise stays in its diagonal, where the paper's averages remove it; ``modo`` avoids that bias by
    other means.

    Update scale: K identical gradients g merge to g at the features. With ``wrt=parameters`` they merge
    to :math:`\beta g` in the first step, by default g/2, and approach g in later ones.

    Differences: at the features, as described above. A step uses the new averages and the new weights,
    as in all published code. The authors' Office code projects onto the simplex, with twice the step
    size; their image code, and LibMTL after it, first give every gradient the length of its loss and
    take a softmax in place of the projection. TorchJD does not have the method.

    Args:
        beta: step size of the average. The defaults of all options are LibMTL's; the authors' scripts
            have 0.05 to 0.99 here, by data set.
        beta_sigma: how fast ``beta`` decays.
        gamma: step size of the weights. With ``wrt=parameters`` it has units of 1/norm^2; at the
            features it has none, because the products are divided by their mean diagonal.
        gamma_sigma: how fast ``gamma`` decays.
        rho: weight of the penalty on :math:`\|w\|^2`.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("moco", tasks=2).combine(grads)
        tensor([0.4500, 0.5167])
    """

    paper = (
        "Fernando et al., Mitigating Gradient Bias in Multi-objective Learning: A Provably Convergent "
        "Approach, ICLR 2023"
    )
    url = "https://arxiv.org/abs/2210.12624"
    idea = "A common descent direction, or a fair bargain"
    search_space = {"beta": Uniform(0.05, 0.99), "gamma": LogUniform(0.01, 1.0)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        beta: Annotated[float, Gt(0), Le(1)] = 0.5,
        beta_sigma: Annotated[float, Ge(0)] = 0.5,
        gamma: Annotated[float, Gt(0)] = 0.1,
        gamma_sigma: Annotated[float, Ge(0)] = 0.5,
        rho: Annotated[float, Ge(0)] = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.beta = beta
        self.beta_sigma = beta_sigma
        self.gamma = gamma
        self.gamma_sigma = gamma_sigma
        self.rho = rho
        self.needs_whole_gradients = self.wrt == "parameters"
        if self.needs_whole_gradients:
            self.add_state("tracked", per="coordinate")
            self.waived_laws = {
                "scale": "gamma has units of 1/norm^2",
                "single_task": "the average starts at zero, as in the paper",
            }
        else:
            self.add_state("tracked", 0.0, per="pair")
        self.add_state("steps", 0, per="all")

    def move(self, w: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Take a projected step on the averaged products."""
        average = state.tracked + self._beta(state) * (gram - state.tracked)
        new = state.tracked.diagonal() == 0
        average = torch.where(new[:, None] | new, gram, average)
        products = safe_divide(average, average.diagonal().mean())
        return self._descend(w, products, state), state.replace(tracked=average, steps=state.steps + 1)

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """Follow the paper: average the gradients, and merge the averages."""
        average = torch.lerp(state.tracked, grads, self._beta(state).to(grads.dtype))
        w = safe_divide(state.w, state.w.sum())
        moved = self._descend(w, (average @ average.T).double(), state)
        return moved.to(grads.dtype) @ average, state.replace(
            tracked=average, w=moved * state.w.sum(), steps=state.steps + 1
        )

    def _descend(self, w: Tensor, products: Tensor, state: State) -> Tensor:
        gamma = self.gamma / (state.steps + 1).double() ** self.gamma_sigma
        return project_onto_simplex(w - gamma * (products @ w + self.rho * w))

    def _beta(self, state: State) -> Tensor:
        rate: Tensor = self.beta / (state.steps + 1).double() ** self.beta_sigma
        return rate
