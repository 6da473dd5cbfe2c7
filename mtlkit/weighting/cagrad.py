"""CAGrad: conflict-averse gradient descent."""

from typing import Annotated, Any

from torch import Tensor

from mtlkit.config import Ge, Uniform, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import GradientAggregator, State, Tasks, on_host
from mtlkit.weighting._solvers import conflict_averse_weights


@register_method("cagrad")
class CAGrad(GradientAggregator):
    r"""Improve the worst-off task as much as possible, near the mean gradient.

    With :math:`G_0 = \frac1K \sum_k G_k`, the merged gradient is

    .. math:: \operatorname{argmax}_d\ \min_k \langle G_k, d \rangle \quad
        \text{subject to}\quad \|d - G_0\| \le c\,\|G_0\|

    which is :math:`d = G_0 + c\,\|G_0\|\, G_w / \|G_w\|` for the :math:`w` in the simplex that minimizes
    :math:`\langle G_w, G_0\rangle + c\,\|G_0\|\,\|G_w\|`. Only the Gram matrix is needed. The optimum is
    exact, by a few non-negative least squares problems on the K x K matrix.

    Update scale: K identical gradients g merge to (1 + c) g.

    Differences: nothing is rescaled afterward, as in the paper. LibMTL and the authors' image code
    divide by :math:`1 + c^2`; the latter also multiplies by K, to match the sum of the losses. Their
    code for reinforcement learning has variants that divide by other numbers. The paper leaves open what
    happens where the gradients are Pareto stationary and the minimum is at :math:`G_w = 0`: many d are
    optimal then, and this is the one nearest to :math:`G_0`. TorchJD returns zero there, which lies
    outside the ball if c < 1, and also where the squared norms sum to less than 1e-4. The solvers of
    LibMTL and TorchJD stop at a tolerance.

    Args:
        c: radius of the ball, relative to the mean gradient; 0 is the mean. With c < 1 stationary
            points are those of the mean loss. The default is that of the authors' image experiments;
            LibMTL has 0.5, TorchJD has no default.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("cagrad", tasks=2).combine(grads)
        tensor([0.3000, 0.7000])
    """

    paper = "Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning, NeurIPS 2021"
    url = "https://arxiv.org/abs/2110.14048"
    idea = "A common descent direction, or a fair bargain"
    solves_on_host = True
    waived_laws = {
        "single_task": "the best vector in the ball around a single gradient g is (1 + c) g",
    }
    search_space = {"c": Uniform(0.1, 1.0)}

    def __init__(self, tasks: Tasks, *, c: Annotated[float, Ge(0)] = 0.4, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.c = c

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        weights = on_host(conflict_averse_weights, gram, c=self.c, rounding=eps_of(gram))
        return weights.to(gram.dtype), state
