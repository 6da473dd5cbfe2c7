"""MoDo: multi-objective descent with double sampling."""

from typing import Annotated, Any

from torch import Tensor

from mtlkit.config import Choice, Ge, Gt, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.simplex import SimplexWeights, project_onto_simplex


@register_method("modo")
class MoDo(SimplexWeights):
    r"""Take one stochastic step toward MGDA's weights per training step.

    .. math:: w \leftarrow \Pi\big(w - \gamma\,(\mathbf{G}_{12} + \rho I)\, w\big)

    with the projection :math:`\Pi` onto the simplex and products :math:`\mathbf{G}_{12}` of gradients
    from two independent samples, so that the step is unbiased. These are the even and the odd samples of
    the batch that the features hold. Without an axis of samples (in ``combine``, with
    ``wrt=parameters``, for a single sample) the Gram matrix is used instead. At the start w is 1/K.

    Update scale: K identical gradients g merge to g.

    Differences: the paper draws two batches for the products, and LibMTL a third for the step; here one
    batch serves for all. The authors' code applies the weights to the sum of both batches' gradients,
    which is twice as long. TorchJD leaves the products to the caller.

    Args:
        gamma: step size of the weights. The authors' 0.001 (NYUv2, Office-31; LibMTL's default too) is
            for unnormalized products of parameter gradients, for which TorchJD has 0.1. The default here
            is for normalized products.
        rho: weight of the penalty on :math:`\|w\|^2`, which keeps the weights near 1/K. LibMTL and
            TorchJD have 0.1 too; the authors' MNIST code has 0.
        normalize: divide the products by the mean square of the gradients' norms, so that ``gamma``
            has no unit. At the features the norms shrink with the batch size, and with the paper's
            absolute step (False) the weights would hardly move.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("modo", tasks=2).combine(grads)
        tensor([0.4500, 0.5167])
    """

    paper = (
        "Chen et al., Three-Way Trade-Off in Multi-Objective Learning: Optimization, Generalization "
        "and Conflict-Avoidance, NeurIPS 2023"
    )
    url = "https://arxiv.org/abs/2305.20057"
    idea = "A common descent direction, or a fair bargain"
    waived_laws = {
        "junction": "the features' gradients are compared between samples; combine is given no samples",
    }
    uses_cross_gram = True
    search_space = {"gamma": LogUniform(0.01, 1.0), "rho": Choice(0.0, 0.1)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        gamma: Annotated[float, Gt(0)] = 0.1,
        rho: Annotated[float, Ge(0)] = 0.1,
        normalize: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.gamma = gamma
        self.rho = rho
        self.normalize = normalize

    def move(self, w: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        products = state.cross_gram.double()
        if self.normalize:
            products = safe_divide(products, gram.diagonal().mean())
        step = products @ w + self.rho * w
        return project_onto_simplex(w - self.gamma * step), state
