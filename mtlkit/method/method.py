"""What a user calls: a method forks features, adds up losses, and merges gradients.

:class:`Method` turns the hooks of its parts (:mod:`mtlkit.method.aggregator`) into a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.config.names import task_names
from mtlkit.config.spec import Part, format_spec
from mtlkit.engine.feature_node import Report, fork, fork_unrecorded
from mtlkit.engine.gradients import MatrixGradients
from mtlkit.engine.guards import Fork, Forks, check_unforked
from mtlkit.engine.loss_node import join_losses
from mtlkit.engine.merger import Leaves
from mtlkit.engine.processes import ALONE, Processes, processes_of
from mtlkit.engine.replicas import LoneTraining
from mtlkit.engine.step import Step, measure_rows
from mtlkit.errors import SpecError, UsageError
from mtlkit.method import losses as loss_terms
from mtlkit.method.state import Stateful
from mtlkit.method.stats import LastStep, Stats

if TYPE_CHECKING:
    from mtlkit.method.aggregator import GradientAggregator

Tasks = int | Sequence[str] | Mapping[str, Any]


class Method(Stateful):
    """A training step over the parts of a method; see :class:`GradientAggregator`."""

    roles: frozenset[str] = frozenset()
    """Which of ``loss``, ``fork`` and ``merge`` it plays."""
    traceable: bool = True
    """Whether ``torch.compile`` can trace it. A solver on the host cannot be traced."""
    parts: tuple[GradientAggregator, ...]
    """The parts of this method, left to right."""
    merge_part: GradientAggregator | None
    """The part that merges; None means the plain sum."""
    fork_part: GradientAggregator | None
    """The part that forks; None means that every task is given the features as they are."""
    wrt_parameters: bool
    """Whether the gradients of the shared parameters are merged."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = task_names(tasks)
        super().__init__(len(self.tasks))
        self.shared: list[Tensor] | None = None
        self.last_step = LastStep(len(self.tasks))
        self._forks = Forks()
        self.lone = LoneTraining()
        self._chosen = ALONE

    def assemble(self, parts: tuple[GradientAggregator, ...]) -> None:
        """Set the parts, left to right."""
        by_role = {role: part for part in parts for role in part.roles}
        # a method may be its own part, so these are no submodules
        merge = by_role.get("merge")
        vars(self).update(parts=parts, merge_part=merge, fork_part=by_role.get("fork"))
        self.wrt_parameters = merge is not None and merge.wrt == "parameters"

    def own_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Gradients of the :meth:`owned` parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its parameters learn")

    # What a user calls

    def forward(self, features: Any) -> list[Any]:
        """K features in task order, whose gradients will be merged."""
        if torch.compiler.is_compiling() and (self.wrt_parameters or not self.traceable):
            return _forward_untraced(self, features)
        if not (self.training and torch.is_grad_enabled()):
            if self.training:
                self._forks.skip()
            return fork_unrecorded(self, features)
        if torch.compiler.is_compiling():
            self.last_step.expect_compiled()
        if self.fork_part is not None:
            self.fork_part.prepare()
        record = Fork(self.processes)
        views, anchor = fork(self, features, record)
        self._forks.open(record, anchor)
        return views

    def total(self, losses: Mapping[str, Tensor | None] | Sequence[Tensor | None]) -> Tensor:
        """One scalar to call ``backward()`` on.

        Args:
            losses: one scalar per task, in task order or by name; None, or an absent name, is a
                task without labels in this batch. Without a fork, a parameter that one of them alone
                reaches gets that task's own gradient, also where the others have no labels.
        """
        given = loss_terms.align(losses, self.tasks)
        recording = self.training and torch.is_grad_enabled()
        if recording and not torch.compiler.is_compiling():
            self.lone.count_step()
        anchor = self._forks.close(given, self.tasks) if recording else None
        exchanged = recording and (self.uses_losses or "loss" in self.roles)
        processes = self.processes if exchanged else ALONE
        if recording and anchor is None and not (self.is_sum and processes.alone):
            check_unforked(given, self.tasks, self.processes)
        device = self.last_step.gram.device
        weighed = loss_terms.weigh(given, self.parts, processes, device, recording=recording)
        terms = list(weighed.terms.values())
        if recording and anchor is None and not self.is_sum:
            self._forks.refuse_without_fork(self, given)
            if not self.needs_fork and (given or not self.processes.alone):
                in_order = [weighed.terms.get(task) for task in range(len(self.tasks))]
                terms = [_join_untraced(self, in_order, weighed.values)]
        if anchor is not None:
            terms.append(Report.apply(anchor, weighed.values))
        if weighed.extra is not None:
            terms.append(weighed.extra)
        if not terms:
            raise UsageError(
                "every loss is None and no features were forked: there is nothing to minimize; "
                "call method(features) first, or skip this batch"
            )
        return sum(terms[1:], terms[0])

    @torch.no_grad()
    def combine(self, grads: Tensor, losses: Tensor | None = None) -> Tensor:
        """Merge (K, N) task gradients into (N,), and keep the new state, as a step does.

        Parts that weigh the losses by their values take part only if ``losses`` (K,) are given. The
        statistics are kept too, unless the merge, such as ``mean``, has no need for a Gram matrix.
        """
        if not isinstance(grads, Tensor) or grads.dim() != 2 or grads.shape[0] != len(self.tasks):
            found = tuple(grads.shape) if isinstance(grads, Tensor) else type(grads).__name__
            raise SpecError(f"combine takes one row per task, ({len(self.tasks)}, N); got {found}")
        if not grads.is_floating_point():
            raise SpecError(f"gradients must be floating point, not {grads.dtype}")
        if losses is not None:
            losses = self._check_losses(losses)
        with torch.autocast(grads.device.type, enabled=False):
            return self._combine(grads, losses).to(grads.dtype)

    def _check_losses(self, losses: Tensor) -> Tensor:
        if not isinstance(losses, Tensor) or losses.shape != (len(self.tasks),):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise SpecError(
                f"losses must be a tensor of one per task, ({len(self.tasks)},); got {found}"
            )
        return losses.detach()

    def _combine(self, grads: Tensor, losses: Tensor | None) -> Tensor:
        matrix = grads.to(torch.promote_types(grads.dtype, torch.float32))
        if "loss" in self.roles:
            matrix = self.loss_factors(losses, matrix, commit=True)[:, None] * matrix
        if self.merge_part is not None and not self.merge_part.reads_gram:
            return self._combine_unmeasured(self.merge_part, matrix)
        rows = MatrixGradients(matrix)
        (merged,) = self.merge_step(measure_rows(rows, tasks=len(matrix), losses=losses))
        assert merged is not None
        return merged

    @property
    def stats(self) -> Stats | None:
        """The last step, read off its Gram matrix; None before the first, or if nothing was merged."""
        return self.last_step.stats()

    @property
    def rotations(self) -> Tensor:
        """(K, m, m) current rotations, where a part rotates."""
        part = self.fork_part
        if part is not None and part is not self:
            return part.rotations
        # an AttributeError would be taken for a missing attribute by nn.Module, and hidden
        raise UsageError(f"{self} has no rotations; use 'rotate+...' or 'rotograd'")

    @property
    def process_group(self) -> Any:
        """Process group of the data-parallel replicas; None means all processes."""
        return self._chosen.group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._chosen = ALONE if group is None else Processes(group)

    def set_shared(self, shared: nn.Module | Iterable[Tensor] | None) -> None:
        """Name the shared parameters, for ``wrt=parameters``; without, all that several tasks reach."""
        if shared is None:
            self.shared = None
            return
        found: Any = shared.parameters() if isinstance(shared, nn.Module) else shared
        tensors = list(found) if isinstance(found, Iterable) else [found]
        wrong = next((item for item in tensors if not isinstance(item, Tensor)), None)
        if wrong is not None or not tensors:
            kind = type(shared).__name__
            if wrong is not shared:
                kind += f" of {type(wrong).__name__}" if tensors else " without any"
            raise SpecError(
                f"shared must be a module or a list of parameters, not {kind}; "
                "for example shared=net.backbone or shared=net.backbone.parameters()"
            )
        self.shared = tensors

    # What it is made of

    @property
    def needs_fork(self) -> bool:
        """Whether the features must be forked by ``method(features)`` in every step."""
        return not (self.is_sum or (self.wrt_parameters and self.fork_part is None))

    @property
    def is_sum(self) -> bool:
        """Whether autograd's own sum of the gradients is what this method does with them."""
        plain = self.merge_part is None or self.merge_part.is_plain_sum
        return plain and self.fork_part is None

    @property
    def processes(self) -> Processes:
        """The processes that share a step."""
        alone = not (dist.is_available() and dist.is_initialized())
        if alone or not (self.merge_part is None or self.merge_part.sync):
            return ALONE
        return processes_of(self.process_group)

    @property
    def spec(self) -> list[Part]:
        """Names and options of the parts; options left at their defaults are not listed."""
        return [part.own_spec() for part in self.parts]

    def __str__(self) -> str:
        return format_spec(self.spec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self)!r}, tasks: {', '.join(self.tasks)}>"

    # How a step is merged

    def merge_step(self, step: Step) -> Leaves:
        """The merged gradient; the new state of the merge is committed."""
        if not step.present:
            self.last_step.forget()
            return []
        part = self.merge_part
        if part is None:
            weights = torch.where(step.finite, torch.ones_like(step.gram[0]), torch.nan)
        elif part.needs_whole_gradients:
            return self._merge_whole(part, step)
        else:
            state = part.state_of(step)
            # a part never meets gradients that are not finite: it sees zeros, and the step is discarded
            weights, new = part.weigh(torch.where(step.finite, step.gram, 0.0), state)
            # a copy, before what may be the state itself changes
            weights = torch.where(step.finite, weights.to(step.gram.dtype), torch.nan)
            if new is not state:
                part.commit_state(state, new, step.present, step.finite)
        self.last_step.keep(step, weights)
        tasks = step.delivered.tasks
        if not tasks:  # other processes have them all
            return []
        return step.delivered.weighted(weights if tasks == step.present else step.of(weights, tasks))

    def _merge_whole(self, part: GradientAggregator, step: Step) -> Leaves:
        if step.delivered is not step.rows:
            raise UsageError(
                f"{part} merges whole gradients, so with wrt=parameters every parameter below the "
                "features must be in `shared`; pass the whole backbone as shared, or wrt=features"
            )
        matrix = step.matrix()
        state = part.fit_coordinates(part.state_of(step), matrix, step.rows.reached)
        merged, new = part.merge_rows(matrix, state)
        merged = torch.where(step.finite, merged, torch.nan)
        part.commit_state(state, new, step.present, step.finite)
        products = torch.cat([matrix @ merged, torch.dot(merged, merged)[None]])
        if not step.over_parameters:  # this process has the columns of its own samples alone
            products = step.processes.sum(products)
        self.last_step.keep(step, None, products)
        return step.rows.split(merged * step.unit)

    def _combine_unmeasured(self, part: GradientAggregator, matrix: Tensor) -> Tensor:
        """What :meth:`merge_step` does, for weights that depend on the number of tasks alone."""
        everyone = tuple(range(len(matrix)))
        state = part.read_state(everyone)
        unknown = matrix.new_full(2 * (len(matrix),), torch.nan)
        weights, new = part.weigh(unknown, state)
        merged = weights.to(matrix.dtype) @ matrix
        if new is not state:
            part.commit_state(state, new, everyone, torch.dot(merged, merged) < torch.inf)
        return merged

    def loss_factors(self, losses: Tensor | None, like: Tensor, *, commit: bool = False) -> Tensor:
        """(K,) product of the parts' loss weights, as far as these are known without a step."""
        everyone = tuple(range(len(self.tasks)))
        factors = torch.ones(len(everyone), dtype=like.dtype, device=like.device)
        finite = torch.isfinite(like).all()
        if losses is not None:
            finite = finite & torch.isfinite(losses).all()
        for part in self.parts:
            if "loss" not in part.roles or (part.uses_losses and losses is None):
                continue
            state = part.read_state(everyone)
            weights, new = part.weigh_losses(factors if losses is None else factors * losses, state)
            factors = factors * weights.detach().to(like)
            if commit and new is not state:
                usable = finite & torch.isfinite(weights).all() & new.is_finite()
                part.commit_state(state, new, everyone, usable)
        return factors


_untraced: Any = torch.compiler.disable  # torch gives it no type
_forward_untraced: Callable[[Method, Any], list[Any]] = _untraced(Method.forward)
_join_untraced: Callable[[Method, list[Tensor | None], Tensor], Tensor] = _untraced(join_losses)
