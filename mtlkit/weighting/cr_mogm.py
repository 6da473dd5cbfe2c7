"""CR-MOGM: smooth another method's weights over the steps."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from mtlkit.config import Ge, Le, Uniform, register_method
from mtlkit.errors import SpecError
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.method.create import create_method


@register_method("cr_mogm")
class CRMOGM(GradientAggregator):
    r"""Smooth the weights that another method finds, so that noise in them does not bias the steps.

    .. math:: w^t = \alpha\, w^{t-1} + (1 - \alpha)\, \hat w^t, \qquad w^0 = \hat w^1

    with the weights :math:`\hat w^t` of the method ``inner``: ``cr_mogm(inner=cagrad(c=0.4))``. This
    method needs what ``inner`` needs, and keeps and saves its state. A task's average starts at its
    first weight, and does not change while the task is absent.

    Update scale: that of ``inner``; with the default, K identical gradients g merge to g.

    Differences: the paper lets :math:`\alpha` grow as the learning rate falls. Here it is constant;
    ``method.alpha`` may be set at any time. LibMTL does not have the method.

    Args:
        inner: config string of a method that has a weight per task.
        alpha: fraction of the old weights; 0 is ``inner`` itself. TorchJD has 0.9 too.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("cr_mogm", tasks=2).combine(grads)
        tensor([0.2000, 0.6000])
    """

    paper = (
        "Zhou et al., On the Convergence of Stochastic Multi-Objective Gradient Manipulation and "
        "Beyond, NeurIPS 2022"
    )
    url = "https://proceedings.neurips.cc/paper_files/paper/2022/hash/f91bd64a3620aad8e70a27ad9cb3ca57-Abstract-Conference.html"
    idea = "A common descent direction, or a fair bargain"
    search_space = {"alpha": Uniform(0.5, 0.99)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        inner: str = "mgda",
        alpha: Annotated[float, Ge(0), Le(1)] = 0.9,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.inner = inner
        self.alpha = alpha
        self.smoothed_part = _create(inner, self.tasks)
        self.uses_losses = self.smoothed_part.uses_losses
        self.uses_cross_gram = self.smoothed_part.uses_cross_gram
        self.solves_on_host = self.smoothed_part.solves_on_host
        self.waived_laws = self.smoothed_part.waived_laws
        self.add_state("smoothed", 0.0)
        self.add_state("seen", 0)

    def read(self, present: tuple[int, ...], **extras: Any) -> State:
        """Read the own state and, as ``state.inner``, that of the inner method."""
        return super().read(present, **extras, inner=self.smoothed_part.read(present, **extras))

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        found, inner = self.smoothed_part.weigh(gram, state.inner)
        found = found.double()
        average = self.alpha * state.smoothed + (1 - self.alpha) * found
        smoothed = torch.where(state.seen == 0, found, average)
        return smoothed, state.replace(smoothed=smoothed, seen=state.seen + 1, inner=inner)

    def commit(self, old: State, new: State, present: tuple[int, ...], finite: Tensor) -> None:
        """Commit both states."""
        super().commit(old, new, present, finite)
        self.smoothed_part.commit(old.inner, new.inner, present, finite)

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The learned parameters of the inner method."""
        return self.smoothed_part.learned

    def learn(self, gram: Tensor, state: State) -> Mapping[str, Tensor]:
        """Return the gradients of the inner method's parameters."""
        return self.smoothed_part.learn(gram, state.inner)


def _create(inner: str, tasks: tuple[str, ...]) -> GradientAggregator:
    parts: list[GradientAggregator] = [*create_method(inner, tasks).parts]
    part = parts[0]
    if len(parts) > 1 or part.roles != {"merge"} or part.needs_whole_gradients:
        raise SpecError(
            f"inner of cr_mogm must be one method with a weight per task, such as 'mgda' or "
            f"'cagrad(c=0.4)', not {inner!r}; combine other parts outside: 'uw+cr_mogm(inner=mgda)'"
        )
    if part.wrt != "features" or not part.sync:
        raise SpecError(f"give wrt and sync to cr_mogm, not to its inner {inner!r}")
    return part
