"""AdaTask: separate Adam moments for each task."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Lt, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.errors import SpecError
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("adatask")
class AdaTask(GradientAggregator):
    r"""Compute a step of Adam for each task, with its own moments, and add the steps.

    .. math:: \sum_k \frac{\hat m_k}{\sqrt{\hat v_k} + \epsilon}, \qquad
        m_k \leftarrow \beta_1 m_k + (1 - \beta_1)\, G_k, \quad
        v_k \leftarrow \beta_2 v_k + (1 - \beta_2)\, G_k^2

    for every shared parameter, with the bias corrections :math:`\hat m_k = m_k / (1 - \beta_1^t)` and
    :math:`\hat v_k = v_k / (1 - \beta_2^t)`, where t counts the steps in which the task is present. So
    no task sets the learning rates of another. The state is 2K copies of the shared parameters, which
    have to be the same in every step.

    The merged gradient is the step of Adam, up to the learning rate: give the shared parameters to plain
    ``SGD`` (no momentum) with the learning rate that Adam would have, and the heads to ``Adam``. A
    feature's gradient belongs to one sample of one batch and has no moments, so the method works with
    ``wrt=parameters`` only, which is its default.

    Update scale: K identical gradients merge to K times Adam's step: in the first step every entry is K
    or -K.

    Differences: none from the paper's AdaTask with Adam, or from the authors' optimizer class; there,
    too, the heads use ordinary Adam. The paper's variants for AdaGrad and RMSProp are not included.
    LibMTL and TorchJD do not have the method.

    Args:
        beta1: decay of the first moments.
        beta2: decay of the second moments.
        eps: :math:`\epsilon`, in the units of the gradients.
        wrt: must be ``parameters``.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("adatask", 2)
        >>> method.combine(torch.tensor([[100.0, -3.0], [0.02, 0.0]]))
        tensor([ 2.0000, -1.0000])
    """

    paper = (
        "Yang et al., AdaTask: A Task-Aware Adaptive Learning Rate Approach to Multi-Task Learning, "
        "AAAI 2023"
    )
    url = "https://arxiv.org/abs/2211.15055"
    idea = "Gradient balancing: no task dominates by its size"
    waived_laws = {
        "scale": "eps has the units of the gradients, as in Adam",
        "single_task": "the gradient of a single task becomes Adam's step",
        "identical_rows": "Adam divides every entry by its own size, so that the direction changes",
    }
    search_space = {"beta1": Choice(0.0, 0.9), "beta2": Choice(0.99, 0.999)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.999,
        eps: Annotated[float, Ge(0)] = 1e-8,
        wrt: Literal["features", "parameters"] = "parameters",
        **common: Any,
    ) -> None:
        super().__init__(tasks, wrt=wrt, **common)
        if self.wrt != "parameters":
            raise SpecError(
                f"adatask(wrt={self.wrt}): a feature's gradient has no moments from step to step; leave "
                "wrt out, or use a method such as balancer, which averages the norms"
            )
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.add_state("first_moments", per="coordinate")
        self.add_state("second_moments", per="coordinate")
        self.add_state("seen", 0)

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        seen = state.seen + 1
        m = torch.lerp(grads, state.first_moments, self.beta1)
        v = torch.lerp(grads.square(), state.second_moments, self.beta2)
        first = (1 - self.beta1 ** seen.double()).to(grads.dtype)[:, None]
        second = (1 - self.beta2 ** seen.double()).to(grads.dtype)[:, None]
        steps = safe_divide(m / first, (v / second).sqrt() + self.eps)
        return steps.sum(dim=0), state.replace(first_moments=m, second_moments=v, seen=seen)
