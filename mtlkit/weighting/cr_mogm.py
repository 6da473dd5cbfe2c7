"""CR-MOGM: smooth another method's weights over the steps."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config.annotations import Ge, Le
from mtlkit.config.registry import register_method
from mtlkit.config.search import Uniform
from mtlkit.engine.step import Step
from mtlkit.errors import SpecError
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.create import create_method
from mtlkit.method.method import Tasks
from mtlkit.method.state import State


@register_method("cr_mogm")
class CRMOGM(GradientAggregator):
    r"""Smooth the weights that another method finds, so that noise in them does not bias the steps.

    .. math:: w^t = \alpha\, w^{t-1} + (1 - \alpha)\, \hat w^t, \qquad w^0 = \hat w^1

    with the weights :math:`\hat w^t` of the method ``inner``: ``cr_mogm(inner=cagrad(c=0.4))``. This
    method needs what ``inner`` needs, and keeps and saves its state. A task's average starts at its
    first weight, and stands still while the task is absent.

    Length: that of ``inner``; with the default, K equal gradients g give g.

    Differences: the paper lets :math:`\alpha` grow as the learning rate falls. Here it is constant;
    ``method.alpha`` may be set at any time. LibMTL does not have the method.

    Args:
        inner: config string of a method that has a weight per task.
        alpha: share of the old weights; 0 is inner itself. TorchJD has 0.9 too.
    """

    paper = (
        "Zhou et al., On the Convergence of Stochastic Multi-Objective Gradient Manipulation and "
        "Beyond, NeurIPS 2022"
    )
    year = 2022
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
        self.method = _create(inner, self.tasks)
        self.uses_losses = self.method.uses_losses
        self.uses_cross_gram = self.method.uses_cross_gram
        self.traceable = self.method.traceable
        self.waived_laws = self.method.waived_laws
        self.add_state("smoothed", 0.0)
        self.add_state("seen", 0)

    def read_state(self, present: tuple[int, ...], **extras: Any) -> State:
        """Own state and, in ``state.inner``, that of the inner method."""
        inner = self.method.read_state(present, **extras)
        return super().read_state(present, **extras, inner=inner)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """The smoothed weights."""
        found, inner = self.method.weigh(gram, state.inner)
        found = found.double()
        average = self.alpha * state.smoothed + (1 - self.alpha) * found
        smoothed = torch.where(state.seen == 0, found, average)
        return smoothed, state.replace(smoothed=smoothed, seen=state.seen + 1, inner=inner)

    def commit_state(self, old: State, new: State, present: tuple[int, ...], finite: Tensor) -> None:
        """Keep both states."""
        super().commit_state(old, new, present, finite)
        self.method.commit_state(old.inner, new.inner, present, finite)

    def owned(self) -> tuple[Tensor, ...]:
        """Those of the inner method."""
        return self.method.owned()

    def own_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Those of the inner method."""
        return self.method.own_gradients(step)


def _create(inner: str, tasks: tuple[str, ...]) -> GradientAggregator:
    method = create_method(inner, tasks)
    if method.roles != {"merge"} or method.needs_whole_gradients:
        raise SpecError(
            f"inner of cr_mogm must be one method with a weight per task, such as 'mgda' or "
            f"'cagrad(c=0.4)', not {inner!r}; other parts are joined outside: 'uw+cr_mogm(inner=mgda)'"
        )
    if method.wrt != "features" or not method.sync:
        raise SpecError(f"give wrt and sync to cr_mogm, not to its inner {inner!r}")
    return method
