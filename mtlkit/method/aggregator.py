"""The abstract :class:`GradientAggregator`: the roles of a part and the hooks that it overrides."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from mtlkit.config.registry import check_options, option_defaults
from mtlkit.config.search import Search
from mtlkit.config.spec import Part
from mtlkit.engine.merger import Leaves
from mtlkit.engine.step import Step, spread
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.method import Method, Tasks
from mtlkit.method.state import State

_HOOKS = {
    "loss": ("loss_weights", "weigh_losses"),
    "fork": ("fork", "pull_back"),
    "merge": ("weights", "weigh", "merge", "merge_rows"),
}


def _of_gram(weights: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``weights``, with a clear error for what is no Gram matrix."""

    @functools.wraps(weights)
    def checked(self: GradientAggregator, gram: Tensor) -> Tensor:
        is_tensor = isinstance(gram, Tensor)
        shape = tuple(gram.shape) if is_tensor else ()
        if not (is_tensor and gram.is_floating_point() and len(shape) == 2 and shape[0] == shape[1]):
            found = f"{shape} of {gram.dtype}" if is_tensor else type(gram).__name__
            raise SpecError(f"weights takes the (K, K) matrix rows @ rows.T of floats; got {found}")
        if shape[0] > len(self.tasks):
            raise SpecError(f"weights takes one row per task; got {shape} for {len(self.tasks)} tasks")
        return weights(self, gram)

    return checked


class GradientAggregator(Method, ABC):
    """A method, or a part of one. Subclasses override the hooks of the roles that they play.

    ===================  ========================================  ===============================
    role                 without memory                            with memory
    ===================  ========================================  ===============================
    weigh the losses     ``loss_weights(losses)``                  ``weigh_losses(losses, state)``
    fork the features    ``fork(features)``, ``pull_back(grads)``
    merge the gradients  ``weights(gram)``                         ``weigh(gram, state)``
    ... as a whole       ``merge(grads)``                          ``merge_rows(grads, state)``
    ===================  ========================================  ===============================

    Hooks are pure functions over the P tasks that are present. One with memory is given the state that
    ``__init__`` declared (``add_state``, ``add_constant``, ``add_learned``) and returns its result and
    the new state. Keyword-only arguments of ``__init__`` are the options of the config string; each
    is kept in an attribute of its name.

    Args:
        tasks: number of tasks, or their names.
        wrt: gradients with respect to ``features`` or to the shared ``parameters``.
        sync: reduce Gram matrix and losses over the processes of ``torch.distributed``.
    """

    name: ClassVar[str]
    """Name in the registry."""
    paper: ClassVar[str] = ""
    """Authors, title and venue."""
    year: ClassVar[int | None] = None
    url: ClassVar[str] = ""
    """Address of the paper."""
    idea: ClassVar[str] = ""
    """What the method is listed under, as a heading."""
    reads_gram: ClassVar[bool] = True
    """Whether the weights depend on the Gram matrix, and not on the number of tasks alone."""
    reads_angles: ClassVar[bool] = True
    """Whether the merge depends on the gradients' angles, and not on their lengths alone."""
    is_plain_sum: ClassVar[bool] = False
    """Whether autograd's own sum is the merge, so that ``method(features)`` may be left out."""
    exact_if: ClassVar[str] = ""
    """Condition for exact data parallelism; empty for none."""
    waived_laws: Mapping[str, str] = {}
    """Laws of :mod:`mtlkit.testing` that do not apply, with the reason; ``__init__`` may set others."""
    hidden_options: ClassVar[frozenset[str]] = frozenset()
    search_space: ClassVar[Mapping[str, Search]] = {}
    """Where ``mtlkit tune`` searches for values of the options; see :mod:`mtlkit.config.search`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "weights" in vars(cls):
            setattr(cls, "weights", _of_gram(vars(cls)["weights"]))  # noqa: B010  mypy forbids the plain way
        cls.roles = frozenset(r for r, hooks in _HOOKS.items() if any(map(cls.overrides, hooks)))
        if cls.overrides("merge") or cls.overrides("merge_rows"):
            cls.needs_whole_gradients = vars(cls).get("needs_whole_gradients", True)
        common = {"wrt", "sync"}
        merges = "merge" in cls.roles
        cls.hidden_options = cls.hidden_options - common if merges else cls.hidden_options | common

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the options, so that a class refuses what its config string does."""
        check_options(cls, options)
        return super().__new__(cls)

    def __init__(
        self, tasks: Tasks, *, wrt: Literal["features", "parameters"] = "features", sync: bool = True
    ) -> None:
        if not self.roles:
            raise TypeError(f"{type(self).__name__} is abstract: override the hooks of a role")
        super().__init__(tasks)
        self.wrt = wrt
        self.sync = sync
        self.assemble((self,))

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether the class has a ``hook`` of its own."""
        return getattr(cls, hook) is not getattr(GradientAggregator, hook)

    # Weigh the losses

    def loss_weights(self, losses: Tensor) -> Tensor:
        """(P,) factors of the losses, given their detached values."""
        return torch.ones_like(losses)

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        """(P,) factors of the losses, which may depend on learned parameters, and the new state."""
        return self.loss_weights(losses), state

    def loss_penalty(self, losses: Tensor, state: State) -> Tensor | None:
        """Term that is added to the total, such as the sum of UW's log-variances."""
        return None

    def set_epoch_length(self, batches: int) -> None:
        """Called by the Trainer before it trains, with the number of batches of an epoch."""

    # Fork the features

    def fork(self, features: list[Tensor]) -> list[list[Tensor]]:
        """What each of the K tasks is given."""
        return [features] * len(self.tasks)

    def pull_back(self, grads: dict[int, Leaves]) -> dict[int, Leaves]:
        """Gradients with respect to the features from those with respect to what was given."""
        return grads

    def prepare(self) -> None:
        """Called before the features are forked in a training step."""

    # Merge the gradients

    @_of_gram
    def weights(self, gram: Tensor) -> Tensor:
        """(P,) weights of the task gradients, from their (P, P) inner products."""
        if self.needs_whole_gradients:
            raise UsageError(
                f"{self} merges whole gradients and has no weight per task; call combine(grads)"
            )
        factors = self.loss_factors(None, gram)
        part = self.merge_part
        if part is None:
            return factors
        weighed = factors[:, None] * gram * factors
        state = part.read_state(tuple(range(len(self.tasks))), cross_gram=weighed)
        return factors * part.weigh(weighed, state)[0].to(gram.dtype)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """(P,) weights of the task gradients, and the new state."""
        return self.weights(gram), state

    def merge(self, grads: Tensor) -> Tensor:
        """(N,) merged gradient from (P, N) task gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not merge whole gradients")

    def merge_rows(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """(N,) merged gradient from (P, N) task gradients, and the new state."""
        return self.merge(grads), state

    # Learn own parameters

    def learn(self, gram: Tensor, state: State) -> Mapping[str, Tensor]:
        """(P,) gradients of learned parameters that the total does not give them."""
        return {}

    def own_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Gradients of the :meth:`owned` parameters, times ``step.scale``; None for no gradient."""
        parameters = self.owned()
        if not (parameters and self.overrides("learn")):
            return (None,) * len(parameters)
        found = self.learn(step.gram, self.state_of(step)) if step.present else {}
        gradients = []
        for name, parameter in self.learned.items():
            if name in found:
                gradient = spread(found[name] * step.scale, step.present, step.tasks, fill=0.0)
                gradients.append(gradient.to(parameter.dtype))
            else:  # zero where no process has labels, so that DDP has something to average
                gradients.append(torch.zeros_like(parameter))
        return tuple(gradients)

    # Describe itself

    def join(self, parts: Sequence[GradientAggregator]) -> None:
        """Called once when a method is put together, with all its parts."""

    def own_spec(self) -> Part:
        """Name and options of this part; options left at their defaults are not listed."""
        defaults = option_defaults(type(self))
        lost = [key for key in defaults if not hasattr(self, key)]
        if lost:
            raise UsageError(
                f"{type(self).__name__} takes {', '.join(lost)} and has no attribute of that name: keep "
                f"every option in __init__, as in self.{lost[0]} = {lost[0]}"
            )
        current = {key: getattr(self, key) for key in defaults}
        return Part(self.name, {k: v for k, v in current.items() if v != defaults[k]})
