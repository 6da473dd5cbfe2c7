"""PIVRG: a fair bargain in which tasks behind their single-task score count more."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Gt, Uniform, register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import GradientAggregator, State, Tasks, on_host
from mtlkit.weighting._forms.options import Numbers, per_task
from mtlkit.weighting._solvers import bargaining_weights


@register_method("pivrg")
class PIVRG(GradientAggregator):
    r"""Divide progress by alpha-fairness, with more for tasks that are behind single-task training.

    The merged gradient is :math:`\sum_k x_k G_k` with the x > 0 that solves

    .. math:: (\mathbf{G}\, x)_k = (w_k / x_k)^{1/\alpha}, \qquad
        w = K \operatorname{softmax}(s / T), \qquad
        T = \max\Big( \frac{\max s - \min s}{\log b},\, T_{min} \Big)

    with the Gram matrix :math:`\mathbf{G}` and the scores s: by how many percent a task is worse than
    its single-task model, :math:`\Delta m_k` of the field, negative if it is better. T limits the
    quotient of any two :math:`w_k` to b. The Trainer sets the scores after every validation if it is
    given ``single_task_metrics={"depth": {"mae": 0.61}, ...}``; a loop of your own calls
    ``method.parts[-1].set_scores(...)``. They are saved with the method. Before the first
    call all :math:`w_k` are 1 and the method is ``fairgrad``, as it is with equal scores. The unique
    solution is found by Newton's method on a convex problem. A task whose gradient is zero gets weight
    zero; at a Pareto stationary point the merged gradient is zero.

    Update scale: at equal scores K identical gradients g merge to
    :math:`K^{1/(1+\alpha)}\, \|g\|^{-2\alpha/(1+\alpha)}\, g`.

    Differences: none in the equation. The authors minimize the squared residual, which is not convex, to
    a tolerance; their code then multiplies the merged gradient by K and clips its norm to 1. Their
    scores are those of the test set (of the validation set for QM9). LibMTL and TorchJD do not have
    the method.

    Args:
        alpha: fairness, as in ``fairgrad``; 2 in the authors' code.
        bound: b, the largest quotient of two :math:`w_k`, above 1.
        min_temperature: :math:`T_{min}`, in percent.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("pivrg", ("seg", "depth"))
        >>> method.weights(torch.eye(2))
        tensor([1., 1.])
        >>> method.parts[-1].set_scores({"seg": 20.0, "depth": 0.0})  # w = 4/3 and 2/3
        >>> method.weights(torch.eye(2))  # the cubic roots of w
        tensor([1.1006, 0.8736])
    """

    paper = (
        "Qin et al., Revisiting Fairness in Multitask Learning: A Performance-Driven Approach for "
        "Variance Reduction, CVPR 2025"
    )
    url = (
        "https://openaccess.thecvf.com/content/CVPR2025/papers/Qin_Revisiting_Fairness_in_Multitask_"
        "Learning_A_Performance-Driven_Approach_for_Variance_CVPR_2025_paper.pdf"
    )
    solves_on_host = True
    idea = "A common descent direction, or a fair bargain"
    waived_laws = {
        "single_task": "the equation gives a single gradient g the length |g|^((1-alpha)/(1+alpha))",
    }
    search_space = {"alpha": Uniform(0.5, 3.0), "bound": Uniform(1.1, 4.0)}

    scores: Tensor

    def __init__(
        self,
        tasks: Tasks,
        *,
        alpha: Annotated[float, Ge(0.05)] = 2.0,
        bound: Annotated[float, Gt(1)] = 2.0,
        min_temperature: Annotated[float, Gt(0)] = 10.0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.alpha = alpha
        self.bound = bound
        self.min_temperature = min_temperature
        self.add_state("scores", 0.0)

    def set_scores(self, scores: Numbers | Tensor) -> None:
        """Set by how many percent each task is worse than its single-task model.

        Args:
            scores: one number per task, in task order or by name; a task that is not named has 0.
        """
        given = scores.tolist() if isinstance(scores, Tensor) else scores
        values = per_task("scores of pivrg", given, self.tasks, 0.0)
        self.scores.copy_(torch.tensor(values, dtype=torch.float64))

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        s = state.scores
        temperature = ((s.max() - s.min()) / math.log(self.bound)).clamp(min=self.min_temperature)
        w = len(s) * (s / temperature).softmax(dim=0)
        x = on_host(bargaining_weights, gram, w, power=1 / self.alpha, rounding=eps_of(gram))
        return x.to(gram.dtype), state
