"""The inside of a method: it puts parts together and runs them in a step."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.config.spec import Part, format_spec
from mtlkit.engine import compiled
from mtlkit.engine.accumulation import Kept
from mtlkit.engine.compiled_merge import decide_compiled
from mtlkit.engine.gradients import TensorList
from mtlkit.engine.guards.steps import Guards
from mtlkit.engine.processes import ALONE, Processes, processes_of
from mtlkit.engine.sharded import is_sharded
from mtlkit.engine.step import Hooks, Step, scatter
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.groups import Groups, Shared
from mtlkit.method.losses import exchange, weigh
from mtlkit.method.state import State


class Composition(nn.Module):
    """The parts of a :class:`~mtlkit.Method`, and what the engine calls in a step."""

    tasks: tuple[str, ...]
    process_group: Any = None
    """Process group of the data-parallel replicas; None means all processes."""
    wrt_parameters: bool
    """Whether gradients of the shared parameters are merged, not those of the features."""
    is_sum: bool
    """Whether autograd's own sum of the gradients is what this method does with them."""
    needs_fork: bool
    """Whether the features must be forked by ``method(features)`` in every step."""
    weighs_losses: bool
    """Whether some part weighs the losses."""
    cost_period: int
    """Number of steps after which their cost repeats."""
    shared: list[Tensor] | None
    """The shared parameters; None if they have not been named."""

    def __init__(
        self, parts: GradientAggregator | Sequence[GradientAggregator], *, shared: Shared = None
    ) -> None:
        super().__init__()
        listed = [parts] if isinstance(parts, GradientAggregator) else list(parts)
        _check_parts(listed)
        self.tasks = listed[0].tasks
        self.parts = nn.ModuleList(listed)
        for part in listed:
            part.join(listed)
        merging = self.merging
        self.wrt_parameters = merging is not None and merging.wrt == "parameters"
        self.is_sum = self.forking is None and (merging is None or merging.is_plain_sum)
        self.needs_fork = not (self.is_sum or (self.wrt_parameters and self.forking is None))
        self.weighs_losses = bool(self._loss_parts)
        self._reads_losses = self.weighs_losses or (merging is not None and merging.uses_losses)
        self.cost_period = max(part.cost_period for part in listed)
        self._whole = merging is not None and merging.needs_whole_gradients
        traceable = compiled.TRACEABLE and all(part.traceable for part in listed)
        self._traceable = traceable and not self.wrt_parameters
        self._begin()
        self._merging_parts: dict[str, GradientAggregator | None] = {}
        """The part that merges, by the name of the group of parameters."""
        self.set_shared(shared)

    def _begin(self) -> None:
        """Make what belongs to this object alone, and is neither copied nor saved."""
        self._guards = Guards(self.tasks)
        self._kept = Kept()
        self._noted: dict[str, tuple[Step, Tensor | None, Tensor | None]] = {}
        """Source of ``stats``, by group: the last step, its weights, or else its products."""
        self._handle = compiled.expose(self._decide_compiled)
        _ = self.forking, self.merging, self._loss_parts  # found now: compilers cannot trace the search

    # What it is made of

    @cached_property
    def forking(self) -> GradientAggregator | None:
        """The part that forks; None if every task is given the features as they are."""
        return next((part for part in self._parts if "fork" in part.roles), None)

    @cached_property
    def merging(self) -> GradientAggregator | None:
        """The part that merges; None means the plain sum."""
        return next((part for part in self._parts if "merge" in part.roles), None)

    @property
    def processes(self) -> Processes:
        """The processes that share a step."""
        alone = not (dist.is_available() and dist.is_initialized())
        if alone or not (self.merging is None or self.merging.sync):
            return ALONE
        return processes_of(self.process_group)

    @property
    def spec(self) -> list[Part]:
        """Names and options of the parts; options left at their defaults are not listed."""
        return [part.own_spec() for part in self._parts]

    def __str__(self) -> str:
        return format_spec(self.spec)

    def __repr__(self) -> str:
        return f"<Method {str(self)!r}, tasks: {', '.join(self.tasks)}>"

    @property
    def _parts(self) -> list[GradientAggregator]:
        return [*self.parts]

    @cached_property
    def _loss_parts(self) -> list[GradientAggregator]:
        return [part for part in self._parts if "loss" in part.roles]

    @property
    def _device(self) -> torch.device:
        tensor = next(itertools.chain(self.buffers(), self.parameters()), None)
        return self.processes.device if tensor is None else tensor.device

    def set_shared(self, shared: Shared) -> None:
        """Name the shared parameters, for ``wrt=parameters``; without, all that several tasks reach.

        A mapping from names to modules or parameters gives each group a merge of its own.
        """
        merging = self.merging
        self._groups = Groups.of(shared, "all" if merging is None else merging.groups)
        if len(self._groups.names) > 1 and not self.wrt_parameters:
            raise SpecError(f"groups of parameters need a merge with wrt=parameters, not {self}")
        names = self._groups.names
        if names != [*self._merging_parts]:  # groups of the same names keep their state
            copies = [] if merging is None else [copy.deepcopy(merging) for _ in names[1:]]
            self.copies = nn.ModuleList(copies)
            """Copies of the part that merges, for all groups of parameters but the first."""
            self._merging_parts = dict(zip(names, [merging, *copies], strict=True))
            several = () if merging is None else (merging, *copies)
            self._learning = [part for part in several if part.learned and part.overrides("learn")]
            """Parts whose merge gives learned parameters a gradient; others get theirs by the total."""
        self.shared = self._groups.tensors
        self._merges_shards = self.wrt_parameters and self.forking is None and is_sharded(self.shared)
        if self.wrt_parameters:
            compiled.allow_several_backward_passes()

    # How a step is merged

    def _weigh_losses(
        self, losses: dict[int, Tensor], processes: Processes, *, commit: bool
    ) -> tuple[dict[int, Tensor], Tensor, Tensor | None]:
        """The losses times the parts' weights, their (K,) unweighed values, and a term of the total.

        The values are averaged over the processes if some part reads them.
        """
        present, values = self._values(losses, processes if self._reads_losses else ALONE)
        extra: Tensor | None = None
        if self._loss_parts:
            factors, extra = weigh(values, present, self._loss_parts, commit=commit)
            if factors is not None:
                by_task = dict(zip(present, factors, strict=True))
                losses = {task: by_task[task] * loss for task, loss in losses.items()}
        return losses, scatter(values, present, len(self.tasks)), extra

    def _values(
        self, losses: Mapping[int, Tensor], processes: Processes
    ) -> tuple[tuple[int, ...], Tensor]:
        """The tasks that have a loss on some process, and the losses' means over the processes."""
        if not losses or not processes.alone:
            return exchange(losses, len(self.tasks), processes, self._device)
        double = any(loss.dtype == torch.float64 for loss in losses.values())
        dtype = torch.float64 if double else torch.float32
        return tuple(losses), torch.stack([loss.detach().to(dtype) for loss in losses.values()])

    def _hooks(self) -> Hooks:
        """Return the functions that the engine calls in the backward pass."""
        merging = self.merging
        if merging is not None and merging.groups != "all" and self.shared is None:
            _refuse_unnamed_groups(self)
        return Hooks(
            tasks=len(self.tasks),
            weigh=self._weigh,
            merge=self._merge_whole if self._whole else None,
            learn=self._learn,
            begin=self._noted.clear,
            learned=[p for part in self._learning for p in part.learned.values()],
            weighing=[p for part in self._loss_parts for p in part.parameters()],
            groups=self._groups.places,
            forking=self.forking,
            shared=self.shared,
            over_parameters=self.wrt_parameters,
            cross_gram=merging is not None and merging.uses_cross_gram,
            guards=self._guards,
            kept=self._kept,
            handle=self._handle,
            method=self,
        )

    def _weigh(self, step: Step) -> Tensor:
        """(P,) weights of the gradients; the new state of the part is committed."""
        part = self._merging_parts.get(step.group, self.merging)
        if part is None:
            weights = torch.where(step.finite, torch.ones_like(step.gram[0]), torch.nan)
        else:
            state = state_of(part, step)
            # a part never meets gradients that are not finite: it sees zeros, and the step is discarded
            weights, new = part.weigh(torch.where(step.finite, step.gram, 0.0), state)
            # a copy: the weights may be the state, which changes below
            weights = torch.where(step.finite, weights, torch.nan).to(step.gram.dtype)
            if new is not state:
                part.commit(state, new, step.present, step.finite)
        self._noted[step.group] = step, weights, None
        return weights

    def _merge_whole(self, grads: Tensor, step: Step, tensors: Sequence[Tensor]) -> Tensor:
        """(N,) merged gradient of (P, N) gradients; the new state of the part is committed."""
        part: Any = self._merging_parts.get(step.group, self.merging)
        state = part.fit_coordinates(state_of(part, step), grads, tensors)
        merged, new = part.merge(grads, state)
        merged = torch.where(step.finite, merged, torch.nan)
        part.commit(state, new, step.present, step.finite)
        products = torch.cat([grads @ merged, torch.dot(merged, merged)[None]])
        self._noted[step.group] = step, None, step.processes.sum(products)
        return merged

    def _learn(self, step: Step | None, group: str) -> TensorList:
        """Gradients of the parameters that the merge of a group owns, times the scale of the loss."""
        part = self._merging_parts.get(group, self.merging)
        if part is None or not self._learning:
            return []
        found: Mapping[str, Tensor] = {}
        if step is not None and step.present:
            found = part.learn(step.gram, state_of(part, step))
        gradients: TensorList = []
        for name, parameter in part.learned.items():
            gradient = torch.zeros_like(parameter)  # so that DDP has something to average
            if step is not None and name in found:
                gradient = scatter(found[name] * step.scale, step.present, step.tasks, fill=0.0)
            gradients.append(gradient.to(parameter.dtype))
        return gradients

    def _decide_compiled(self, gram: Tensor, report: Tensor, extra: Tensor) -> Tensor:
        return decide_compiled(self._hooks(), self.processes, gram, report, extra)

    def loss_factors(self, losses: Tensor) -> Tensor:
        """(K,) product of the parts' weights of (K,) losses; no state changes."""
        return self._loss_factors(losses, losses[:, None])

    def _loss_factors(self, losses: Tensor | None, like: Tensor, *, commit: bool = False) -> Tensor:
        """(K,) product of the parts' loss weights, as far as these are known without a step."""
        parts = [part for part in self._loss_parts if losses is not None or not part.uses_losses]
        values = torch.ones_like(like[:, 0]) if losses is None else losses.detach().to(like.dtype)
        finite = torch.isfinite(like).all() & torch.isfinite(values).all()
        present = tuple(range(len(values)))
        factors, _ = weigh(values, present, parts, finite=finite, commit=commit)
        return torch.ones_like(values) if factors is None else factors

    # How it is copied and saved

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy or pickle, without what belongs to this object's steps."""
        own = ("_guards", "_kept", "_noted", "_handle")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that shares the process group, which cannot be copied."""
        memo[id(self.process_group)] = self.process_group
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def get_extra_state(self) -> Tensor:
        """The names of the tasks, as bytes: state is kept by position."""
        return torch.tensor(list("\n".join(self.tasks).encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Check that the state was saved by a method with the same tasks."""
        names = tuple(bytes(state.tolist()).decode().split("\n"))
        if names != self.tasks:
            raise SpecError(
                f"this state was saved with the tasks {', '.join(names)}, and the method has "
                f"{', '.join(self.tasks)}; create it with the same tasks in the same order"
            )
        self._kept = Kept()  # an interrupted accumulation is no part of the state


def state_of(part: GradientAggregator, step: Step) -> State:
    """The part's state of the step's tasks, and what else its merge asked for."""
    extras: dict[str, Any] = {}
    if part.needs_whole_gradients:
        extras["rank"] = step.processes.rank
    if part.uses_losses and step.losses is not None:
        extras["losses"] = step.losses
    if part.uses_cross_gram:
        products = step.gram if step.cross_gram is None else step.cross_gram
        extras["cross_gram"] = torch.where(step.finite, products, 0.0)
    return part.read(step.present, **extras)


def _refuse_unnamed_groups(method: Any) -> None:
    raise UsageError(
        f"{method} merges groups of parameters, which have to be named: pass the shared module to "
        "create_method, as in shared=net.backbone"
    )


def _check_parts(parts: Sequence[Any]) -> None:
    wrong = next((part for part in parts if not isinstance(part, GradientAggregator)), None)
    if not parts or wrong is not None:
        found = "none" if not parts else type(wrong).__name__
        raise SpecError(f"a method is made of one or more GradientAggregator parts; got {found}")
    names = {part.tasks for part in parts}
    if len(names) > 1:
        found = " and ".join(", ".join(tasks) for tasks in sorted(names))
        raise SpecError(f"all parts of a method must have the same tasks; got {found}")
    for role, verb in (("fork", "fork the features"), ("merge", "merge the gradients")):
        rivals = [part for part in parts if role in part.roles]
        if len(rivals) > 1:
            raise SpecError(
                f"{' and '.join(repr(part.name) for part in rivals)} both {verb}; a method has one part "
                f"that does: keep one of them in {format_spec([p.own_spec() for p in parts])!r}"
            )
