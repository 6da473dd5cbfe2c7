"""The abstract :class:`GradientAggregator`: one part of a method, with the hooks of its author."""

from __future__ import annotations

import inspect
import re
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from mtlkit.config.names import task_names
from mtlkit.config.registry import check_options, option_defaults
from mtlkit.config.search import Search
from mtlkit.config.spec import Part, format_spec
from mtlkit.engine.gradients import TensorList
from mtlkit.engine.step import Rows, Step
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.host import load_solvers
from mtlkit.method.state import State, Stateful

Tasks = int | Sequence[Any] | Mapping[str, Any]

_HOOKS = {"loss": ("weigh_losses",), "fork": ("fork",), "merge": ("weigh", "merge")}


class GradientAggregator(Stateful, ABC):
    """One part of a method. Subclasses override the hook of each role that they play.

    ===================  ============================================================
    role                 hook
    ===================  ============================================================
    weigh the losses     ``weigh_losses(losses, state) -> weights, state``
    fork the features    ``fork(features, *held) -> K features``, ``pull_back(grads, *held)``
    merge the gradients  ``weigh(gram, state) -> weights, state``, or
                         ``merge(grads, state) -> gradient, state``
    ===================  ============================================================

    Hooks are pure functions over the P tasks that are present. They are given the state that
    ``__init__`` declared (``add_state``, ``add_constant``, ``add_learned``) and return their result and
    the new state; a part without memory returns the state that it was given. Keyword-only arguments of
    ``__init__`` are the options of the config string; each is kept in an attribute of its name.

    Args:
        tasks: number of tasks, or their names.
        wrt: merge gradients with respect to ``features`` or to the shared ``parameters``.
        groups: with ``wrt=parameters``, what is merged separately: ``all`` shared parameters as one, or
            each ``layer`` or ``tensor``. ``shared`` as a mapping names groups.
        sync: reduce Gram matrix and losses over the processes of ``torch.distributed``.

    Example:
        >>> class Halves(GradientAggregator):
        ...     name = "halves"
        ...
        ...     def weigh(self, gram, state):
        ...         return torch.full_like(gram[0], 0.5), state
        >>> import mtlkit
        >>> mtlkit.Method([Halves(2)]).combine(torch.eye(2))
        tensor([0.5000, 0.5000])
    """

    __signature__: ClassVar[inspect.Signature]
    name: ClassVar[str]
    """Name in the registry."""
    paper: ClassVar[str] = ""
    """Authors, title and venue."""
    url: ClassVar[str] = ""
    """Where to read the paper."""
    year: ClassVar[int | None] = None
    """Year of the paper; by default the last one in ``paper``."""
    idea: ClassVar[str] = ""
    """The group that the catalog lists it under."""
    search_space: ClassVar[Mapping[str, Search]] = {}
    """Where ``mtlkit tune`` searches for values of the options; see :mod:`mtlkit.config.search`."""
    exact_if: ClassVar[str] = ""
    """Condition for exact data parallelism; empty for none."""
    hidden_options: ClassVar[frozenset[str]] = frozenset()
    waived_laws: Mapping[str, str] = {}
    """Laws of :mod:`mtlkit.testing` that do not apply, with the reason; ``__init__`` may set others."""

    roles: frozenset[str] = frozenset()
    """Which of ``loss``, ``fork`` and ``merge`` it plays."""
    is_plain_sum: ClassVar[bool] = False
    """Whether autograd's own sum is the merge, so that ``method(features)`` may be left out."""
    reads_gram: ClassVar[bool] = True
    """Whether the weights depend on the Gram matrix, and not on the number of tasks alone."""
    reads_angles: ClassVar[bool] = True
    """Whether the merge depends on the gradients' angles, and not on their norms alone."""
    uses_losses: bool = False
    """Whether values of the losses enter; a merge finds them in ``state.losses``."""
    uses_cross_gram: bool = False
    """Whether a merge reads ``state.cross_gram``, products of gradients from independent samples."""
    needs_whole_gradients: bool = False
    """Whether a merge overrides ``merge``, because a weight per task is not enough."""
    solves_on_host: bool = False
    """Whether the weights come from a solver in NumPy, at one synchronization per step."""
    second_pass: bool = False
    """Whether ``update`` needs the losses after the optimizer's step; the Trainer then computes them."""
    cost_period: int = 1
    """Number of steps after which its cost repeats; timings average over as many."""
    traceable: bool = True
    """Whether ``torch.compile`` can trace its fork."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.roles = frozenset(role for role, hooks in _HOOKS.items() if any(map(cls.overrides, hooks)))
        if cls.overrides("merge") and "needs_whole_gradients" not in vars(cls):
            cls.needs_whole_gradients = not cls.overrides("weigh")
        if "paper" in vars(cls) and "year" not in vars(cls):
            years = re.findall(r"\b(?:19|20)\d\d\b", cls.paper)
            cls.year = int(years[-1]) if years else None
        common = {"wrt", "groups", "sync"}
        merges = "merge" in cls.roles
        cls.hidden_options = cls.hidden_options - common if merges else cls.hidden_options | common
        # help() and the docs show what __init__ takes, not __new__
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        cls.__signature__ = inspect.Signature(parameters)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the options, so that a class refuses what its config string does."""
        check_options(cls, options)
        return super().__new__(cls)

    def __init__(
        self,
        tasks: Tasks,
        *,
        wrt: Literal["features", "parameters"] = "features",
        groups: Literal["all", "layer", "tensor"] = "all",
        sync: bool = True,
    ) -> None:
        if not self.roles:
            raise TypeError(f"{type(self).__name__} is abstract: override the hook of a role")
        if groups != "all" and wrt != "parameters":
            raise SpecError(f"groups={groups} are groups of parameters: it needs wrt=parameters")
        self.tasks = task_names(tasks)
        super().__init__(len(self.tasks))
        self.wrt, self.groups, self.sync = wrt, groups, sync
        if self.solves_on_host:
            load_solvers()

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether the class has a ``hook`` of its own."""
        return getattr(cls, hook) is not getattr(GradientAggregator, hook)

    # Weigh the losses

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        """(P,) factors of the losses, which may depend on learned parameters, and the new state."""
        return torch.ones_like(losses), state

    def loss_penalty(self, losses: Tensor, state: State) -> Tensor | None:
        """Term that is added to the total, such as the sum of UW's log-variances."""
        return None

    def update(self, losses: Tensor, state: State) -> State:
        """The new state, given the (P,) losses of the same batch after the optimizer's step."""
        return state

    def set_epoch_length(self, batches: int) -> None:
        """Called by the Trainer before it trains, with the number of batches of an epoch."""

    # Fork the features

    def held(self) -> tuple[Tensor, ...]:
        """Tensors that both ``fork`` and ``pull_back`` read; called before the features are forked."""
        return ()

    def fork(self, features: list[Tensor], *held: Tensor) -> list[list[Tensor]]:
        """What each of the K tasks is given."""
        return [features] * len(self.tasks)

    def pull_back(self, grads: dict[int, TensorList], *held: Tensor) -> dict[int, TensorList]:
        """Gradients with respect to the features from those with respect to what was given."""
        return grads

    def owned(self) -> tuple[Tensor, ...]:
        """Parameters that the fork applies to the features."""
        return ()

    def gradients(self, grads: Rows, units: Tensor, step: Step | None) -> list[Tensor] | None:
        """Gradients of the :meth:`owned` parameters; None leaves them without one.

        Args:
            grads: this process's gradients of the features, by task; the engine averages the result
                over the processes.
            units: (K,) factors ``1 / (P |G_k|)`` that give these gradients the length 1 / P; zero for
                absent tasks.
            step: the step; None in a graph of ``torch.compile``, which has no values yet.
        """
        return []

    # Merge the gradients

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """(P,) weights of the task gradients from their (P, P) inner products, and the new state."""
        raise NotImplementedError(f"{type(self).__name__} has no weight per task")

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """(N,) merged gradient from (P, N) task gradients, and the new state."""
        raise NotImplementedError(f"{type(self).__name__} does not merge whole gradients")

    def learn(self, gram: Tensor, state: State) -> Mapping[str, Tensor]:
        """(P,) gradients of learned parameters that the total does not give them."""
        return {}

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

    def __str__(self) -> str:
        return format_spec([self.own_spec()])
