"""Any aggregator of TorchJD as a method: ``torchjd(name=UPGrad)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mtlkit.config.registry import option_defaults, register_method
from mtlkit.config.spec import Part
from mtlkit.errors import MissingExtraError, SpecError, unknown_name
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.method import Tasks
from mtlkit.method.state import State


@register_method("torchjd")
class TorchJD(GradientAggregator):
    r"""Merge by an aggregator of the package torchjd, where that is installed.

    .. math:: g = \mathcal{A}(J), \qquad J = (G_1, \dots, G_K)^\top

    The aggregator :math:`\mathcal{A}` sees the Jacobian J, whose rows are the gradients of the tasks
    present. Where it computes weights w from the Gram matrix, so that
    :math:`\mathcal{A}(J) = J^\top w(J J^\top)`, it is given the Gram matrix alone: that costs no copy of
    the gradients, and is exact on several processes. For all others a feature's row is this process's
    share of it, so that several processes differ from one. What an aggregator remembers between steps is
    not saved with the method.

    Length: that of the aggregator. With the default, ``AlignedMTL``, K equal gradients g give g;
    mtlkit's ``aligned_mtl`` gives K g.

    Differences: none from TorchJD, except where the gradients are not finite: the result is NaN, so that
    the step is skipped.

    Args:
        name: a class of ``torchjd.aggregation``, such as ``UPGrad``; some need more packages, which the
            error names.
        options: arguments of that class, as a mapping. TorchJD's own defaults hold for the others.
    """

    paper = "Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232, 2024"
    year = 2024
    url = "https://arxiv.org/abs/2406.16232"
    idea = "Robust against outliers, and references"
    traceable = False
    exact_if = "for aggregators of the Gram matrix"

    def __init__(
        self,
        tasks: Tasks,
        *,
        name: str = "AlignedMTL",
        options: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        # `name` is the method's own name in the registry
        self.aggregator_name = name
        self.options = options
        self.aggregator = _make_aggregator(name, dict(options or {}))
        self._gram_weighting = getattr(self.aggregator, "gramian_weighting", None)
        self.needs_whole_gradients = self._gram_weighting is None
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """The weights that TorchJD gives for the Gram matrix."""
        return self._call(self._gram_weighting, gram, len(gram), state)

    def merge_rows(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """What TorchJD makes of the whole gradients."""
        return self._call(self.aggregator, grads, grads.shape[1], state)

    def _call(self, function: Any, given: Tensor, size: int, state: State) -> tuple[Tensor, State]:
        new = state.replace(draws=state.draws + 1)
        if not torch.isfinite(given).all():  # solvers raise there; the step is to be skipped instead
            return given.new_full((size,), torch.nan), new
        devices = [] if given.device.type == "cpu" else [given.device]
        with torch.random.fork_rng(devices):  # random aggregators draw the same on every process
            torch.manual_seed(int(state.draws))
            return function(given), new

    def own_spec(self) -> Part:
        """Name and options of this part."""
        given: dict[str, Any] = {"name": self.aggregator_name, "options": self.options}
        defaults = option_defaults(type(self))
        given |= {"wrt": self.wrt, "sync": self.sync}
        return Part(self.name, {k: v for k, v in given.items() if v != defaults[k]})


def _make_aggregator(name: str, options: dict[str, Any]) -> Any:
    try:
        from torchjd import aggregation
    except ImportError:
        raise MissingExtraError("torchjd", "dev", "the method 'torchjd'") from None
    known = {
        key: value
        for key, value in vars(aggregation).items()
        if isinstance(value, type) and issubclass(value, aggregation.Aggregator)
    }
    if name not in known:
        raise unknown_name("aggregator of torchjd", name, known)
    try:
        return known[name](**options)
    except Exception as error:  # abstract classes, missing or wrong arguments, absent solvers
        raise SpecError(f"torchjd's {name} cannot be made with options {options}: {error}") from None
