"""What a user calls: a method forks features, adds up losses, and merges gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.config.spec import Part, format_spec
from mtlkit.engine import compiled, features
from mtlkit.engine import losses as loss_node
from mtlkit.engine.accumulation import Kept
from mtlkit.engine.gradients import TensorList
from mtlkit.engine.guards import Fork, Guards, check_module
from mtlkit.engine.merging import Hooks
from mtlkit.engine.processes import ALONE, Processes, processes_of
from mtlkit.engine.sharded import is_sharded
from mtlkit.engine.step import Step, measure, spread
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.groups import Groups, Shared
from mtlkit.method.losses import Losses, align, average, weigh
from mtlkit.method.stats import Stats, over_groups


class Method(nn.Module):
    """A method of multi-task learning: parts that weigh losses, fork features and merge gradients.

    Made by :func:`mtlkit.create_method`, or from parts.

    Args:
        parts: instances of :class:`~mtlkit.GradientAggregator`, left to right; at most one that forks
            and one that merges. Without one that merges, gradients are added.
        shared: shared module or parameters, for ``wrt=parameters``; a mapping gives each group of
            parameters a merge of its own.

    Example:
        >>> from mtlkit.weighting import PCGrad, UW
        >>> method = Method([UW(2), PCGrad(2)])
        >>> str(method)
        'uw+pcgrad'
        >>> method.combine(torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
        tensor([0.2500, 0.7500])
    """

    def __init__(
        self, parts: GradientAggregator | Sequence[GradientAggregator], *, shared: Shared = None
    ) -> None:
        super().__init__()
        listed = [parts] if isinstance(parts, GradientAggregator) else list(parts)
        _check_parts(listed)
        self.tasks: tuple[str, ...] = listed[0].tasks
        self.parts = nn.ModuleList(listed)
        self.copies = nn.ModuleList()
        """Copies of the part that merges, for all groups of parameters but the first."""
        for part in listed:
            part.join(listed)
        self._process_group: Any = None
        self._groups = Groups()
        self._begin()
        self.set_shared(shared)

    def _begin(self) -> None:
        """Make what belongs to this object alone, and is neither copied nor saved."""
        self._guards = Guards(self.tasks)
        self._kept = Kept()
        self._stats: Stats | None = None
        self._handle = compiled.expose(self._decide_compiled)
        _ = self.forking, self.merging, self._loss_parts  # found now: compilers cannot trace the search

    # What a user calls

    def forward(self, shared_features: Any) -> list[Any]:
        """K features in task order, whose gradients will be merged."""
        if torch.compiler.is_compiling() and not self._traceable:
            return _forward_untraced(self, shared_features)
        if self.training:
            check_module(self)
        recorded = self.training and torch.is_grad_enabled()
        if not recorded or self._merges_shards:  # those are merged by mtlkit.backward, without a fork
            if self.training and not recorded:
                self._guards.without_gradients()
            return features.fork_unrecorded(shared_features, self.forking, len(self.tasks))
        record = Fork(self.processes)
        if self.merging is not None and not self.merging.sync:
            self._guards.check_own_state(list(self.merging.buffers()))
        views, anchor = features.fork(shared_features, self._hooks(), record)
        self._guards.after_fork(record, anchor)
        return views

    def total(self, losses: Losses, merge: bool = True) -> Tensor:
        """One scalar to call ``backward()`` on.

        Args:
            losses: one scalar per task, in task order or by name; None, or an absent name, is a
                task without labels in this batch. Without a fork, a parameter that one of them alone
                reaches gets that task's own gradient, also where the others have no labels.
            merge: False keeps this micro-batch's gradients of the shared parameters and delivers none;
                the next call with True merges their sum. For ``wrt=parameters`` only.

        Example:
            >>> import mtlkit
            >>> method = mtlkit.create_method("imtl_g", tasks=("seg", "depth"))
            >>> z = torch.ones(3, requires_grad=True)
            >>> seg, depth = method(z)
            >>> method.total({"seg": seg.sum(), "depth": 3 * depth.sum()}).backward()
            >>> z.grad
            tensor([1.5000, 1.5000, 1.5000])
        """
        given = align(losses, self.tasks)
        recording = self.training and torch.is_grad_enabled()
        if not (merge or self.wrt_parameters):
            raise UsageError(
                f"merge=False keeps gradients of parameters, and {self} merges those of the features, "
                "each micro-batch apart: create the method with wrt=parameters, or leave merge out"
            )
        anchor = self._guards.anchor_of(given, merge) if recording else None
        if anchor is None and self.is_sum and not self.weighs_losses and given:
            if recording:
                self._guards.check_plain_sum(given, self.processes)
            terms = list(given.values())
            return sum(terms[1:], terms[0])
        exchanged = recording and (self.weighs_losses or self._merge_uses_losses)
        processes = self.processes if exchanged else ALONE
        given, values, extra = self._weigh_losses(given, processes, commit=recording and merge)
        terms = list(given.values())
        if anchor is not None:
            terms.append(features.Report.apply(anchor, values, tuple(given)))
        elif recording and not self.is_sum:
            self._guards.before_unforked(self, given, self.processes, needs_fork=self.needs_fork)
            if not self.needs_fork and (given or self._kept.batches or not self.processes.alone):
                in_order = [given.get(task) for task in range(len(self.tasks))]
                terms = [_join(self, in_order, values, merge)]
        elif recording:
            self._guards.check_plain_sum(given, self.processes)
        if extra is not None:
            terms.append(extra)
        if not terms and recording and not self.processes.alone:
            raise UsageError(
                "no task has a loss on this process, and the others wait for its gradients: call "
                "method(features) before total(losses), through which it takes part without a loss"
            )
        if not terms:
            raise UsageError(
                "every loss is None and no features were forked: there is nothing to minimize; "
                "call method(features) first, or skip this batch"
            )
        return sum(terms[1:], terms[0])

    @torch.no_grad()
    def update(self, losses: Losses) -> None:
        """Take in the losses of the same batch after the optimizer's step.

        Only parts with a second pass, such as ``famo(second_pass=True)``, read them, weighed by the
        parts to their left as in ``total``; others ignore them.

        Example:
            >>> import mtlkit
            >>> method = mtlkit.create_method("famo(second_pass=True)", tasks=2)
            >>> _ = method.total([torch.tensor(1.0), torch.tensor(1.0)])
            >>> method.update([torch.tensor(0.5), torch.tensor(1.0)])  # the first task is ahead
            >>> method.parts[0].logits
            tensor([-0.0250,  0.0250], dtype=torch.float64)
        """
        if not any(part.overrides("update") for part in self._loss_parts):
            return
        given = align(losses, self.tasks)
        present, values = average(given, len(self.tasks), self.processes, self._device)
        if not present:
            return
        for part in self._loss_parts:
            state = part.read(present)
            new = part.update(values, state)
            if new is not state:
                part.commit(state, new, present, torch.isfinite(values).all() & new.is_finite())
            values = values * part.weigh_losses(values, state)[0].to(values.dtype)

    @torch.no_grad()
    def combine(self, grads: Tensor, losses: Tensor | None = None) -> Tensor:
        """Merge (K, N) task gradients into (N,), and keep the new state, as a step does.

        Parts that weigh the losses by their values take part only if ``losses`` (K,) are given.

        Example:
            >>> import mtlkit
            >>> mtlkit.create_method("mgda", 2).combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
            tensor([0.4000, 0.8000])
        """
        if not isinstance(grads, Tensor) or grads.dim() != 2 or grads.shape[0] != len(self.tasks):
            found = tuple(grads.shape) if isinstance(grads, Tensor) else type(grads).__name__
            raise SpecError(f"combine takes one row per task, ({len(self.tasks)}, N); got {found}")
        if not grads.is_floating_point():
            raise SpecError(f"gradients must be floating point, not {grads.dtype}")
        if losses is not None and (not isinstance(losses, Tensor) or losses.shape != grads.shape[:1]):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise SpecError(
                f"losses must be a tensor of one per task, ({len(self.tasks)},); got {found}"
            )
        with torch.autocast(grads.device.type, enabled=False):
            rows = grads.to(torch.promote_types(grads.dtype, torch.float32))
            rows = self._loss_factors(losses, rows, commit=True)[:, None] * rows
            step = measure(rows @ rows.T, tuple(range(len(rows))), tasks=len(rows), losses=losses)
            if self._whole:
                return self._merge_whole(rows, step, ()).to(grads.dtype)
            return (self._weigh(step) @ rows).to(grads.dtype)

    @torch.no_grad()
    def weights(self, gram: Tensor) -> Tensor:
        """(P,) weights of the task gradients, from their (P, P) inner products; no state changes.

        Example:
            >>> import mtlkit
            >>> mtlkit.create_method("mgda", 2).weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
            tensor([0.2000, 0.8000])
        """
        is_tensor = isinstance(gram, Tensor)
        shape = tuple(gram.shape) if is_tensor else ()
        if not (is_tensor and gram.is_floating_point() and len(shape) == 2 and shape[0] == shape[1]):
            found = f"{shape} of {gram.dtype}" if is_tensor else type(gram).__name__
            raise SpecError(f"weights takes the (K, K) matrix rows @ rows.T of floats; got {found}")
        if shape[0] > len(self.tasks):
            raise SpecError(f"weights takes one row per task; got {shape} for {len(self.tasks)} tasks")
        if self._whole:
            raise UsageError(f"{self} merges whole gradients and has no weight per task; use combine")
        factors = self._loss_factors(None, gram)
        if self.merging is None:
            return factors
        step = measure(factors[:, None] * gram * factors, tuple(range(len(gram))), tasks=len(gram))
        weights, _ = self.merging.weigh(step.gram, self.merging.state_of(step))
        return factors * weights.to(gram.dtype)

    @property
    def stats(self) -> Stats | None:
        """The last step, read off its Gram matrix; None before the first, or if nothing was merged."""
        return self._stats

    @property
    def rotations(self) -> Tensor:
        """(K, m, m) current rotations, where a part rotates."""
        matrices: Callable[[], Tensor] | None = getattr(self.forking, "matrices", None)
        if matrices is None:
            # an AttributeError would be taken for a missing attribute by nn.Module, and hidden
            raise UsageError(f"{self} has no rotations; use 'rotate+...' or 'rotograd'")
        return matrices()

    __jit_ignored_attributes__ = ("rotations", "stats")  # torch.jit.trace reads all others

    def __dir__(self) -> list[str]:
        """The names that can be read: not ``rotations`` where there are none."""
        known: list[str] = super().__dir__()  # type: ignore[no-untyped-call]
        return [name for name in known if name != "rotations" or hasattr(self.forking, "matrices")]

    def set_shared(self, shared: Shared) -> None:
        """Name the shared parameters, for ``wrt=parameters``; without, all that several tasks reach.

        A mapping from names to modules or parameters gives each group a merge of its own.
        """
        merging = self.merging
        self._groups = Groups.of(shared, "all" if merging is None else merging.groups)
        if len(self._groups.names) > 1 and not self.wrt_parameters:
            raise SpecError(f"groups of parameters need a merge with wrt=parameters, not {self}")
        copies = [] if merging is None else [copy.deepcopy(merging) for _ in self._groups.names[1:]]
        self.copies = nn.ModuleList(copies)
        if self.wrt_parameters:
            compiled.allow_several_backward_passes()

    @property
    def shared(self) -> list[Tensor] | None:
        """The shared parameters; None if they have not been named."""
        return self._groups.tensors

    @property
    def process_group(self) -> Any:
        """Process group of the data-parallel replicas; None means all processes."""
        return self._process_group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._process_group = group

    def set_epoch_length(self, batches: int) -> None:
        """Tell parts that count epochs, such as ``dwa``, how many batches one has."""
        for part in self._parts:
            part.set_epoch_length(batches)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and forget features that were forked for a total that never came."""
        self._guards.forget()
        return super().train(mode)

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
    def wrt_parameters(self) -> bool:
        """Whether gradients of the shared parameters are merged, not those of the features."""
        return self.merging is not None and self.merging.wrt == "parameters"

    @property
    def is_sum(self) -> bool:
        """Whether autograd's own sum of the gradients is what this method does with them."""
        plain = self.merging is None or self.merging.is_plain_sum
        return plain and self.forking is None

    @property
    def needs_fork(self) -> bool:
        """Whether the features must be forked by ``method(features)`` in every step."""
        return not (self.is_sum or (self.wrt_parameters and self.forking is None))

    @property
    def weighs_losses(self) -> bool:
        """Whether some part weighs the losses."""
        return bool(self._loss_parts)

    @property
    def processes(self) -> Processes:
        """The processes that share a step."""
        alone = not (dist.is_available() and dist.is_initialized())
        if alone or not (self.merging is None or self.merging.sync):
            return ALONE
        return processes_of(self._process_group)

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
    def _merge_uses_losses(self) -> bool:
        return self.merging is not None and self.merging.uses_losses

    @property
    def _whole(self) -> bool:
        return self.merging is not None and self.merging.needs_whole_gradients

    @property
    def _merges_shards(self) -> bool:
        """Whether the shared parameters are sharded by FSDP2."""
        return self.wrt_parameters and self.forking is None and is_sharded(self.shared)

    @property
    def _traceable(self) -> bool:
        return not self.wrt_parameters and all(part.traceable for part in self._parts)

    @property
    def _device(self) -> torch.device:
        tensor = next(iter(self.buffers()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    # How a step is merged

    def _weigh_losses(
        self, losses: dict[int, Tensor], processes: Processes, *, commit: bool
    ) -> tuple[dict[int, Tensor], Tensor, Tensor | None]:
        """The losses times the parts' weights, their (K,) unweighed values, and a term of the total."""
        present, values = average(losses, len(self.tasks), processes, self._device)
        weighed = weigh(values, present, self._loss_parts, commit=commit)
        if weighed.factors is not None:
            factors = dict(zip(present, weighed.factors, strict=True))
            losses = {task: factors[task] * loss for task, loss in losses.items()}
        return losses, spread(values, present, len(self.tasks)), weighed.extra

    def _hooks(self) -> Hooks:
        """What the engine calls in the backward pass."""
        merging = self.merging
        if merging is not None and merging.groups != "all" and self.shared is None:
            raise UsageError(
                f"{self} merges groups of parameters, which have to be named: pass the shared module to "
                "create_method, as in shared=net.backbone"
            )
        return Hooks(
            tasks=len(self.tasks),
            weigh=self._weigh,
            merge=self._merge_whole if self._whole else None,
            learn=self._learn,
            nothing=self._merge_nothing,
            learned=[p for part in self._merging_parts for p in _learning(part)],
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

    @property
    def _merging_parts(self) -> list[Any]:
        """The parts that merge, one per group of parameters."""
        return [] if self.merging is None else [self.merging, *self.copies]

    def _part_of(self, group: str) -> Any:
        return self._merging_parts[self._groups.names.index(group)] if group else self.merging

    def _weigh(self, step: Step) -> Tensor:
        """(P,) weights of the gradients; the new state of the part is committed."""
        part = self._part_of(step.group)
        if part is None:
            weights = torch.ones_like(step.gram[0])
        else:
            state = part.state_of(step)
            # a part never meets gradients that are not finite: it sees zeros, and the step is discarded
            weights, new = part.weigh(torch.where(step.finite, step.gram, 0.0), state)
            weights = weights.to(step.gram.dtype, copy=True)  # it may be the state, which changes below
            if new is not state:
                part.commit(state, new, step.present, step.finite)
        weights = torch.where(step.finite, weights, torch.nan)
        self._note(Stats(step, weights, None), step.group)
        return weights

    def _merge_whole(self, grads: Tensor, step: Step, tensors: Sequence[Tensor]) -> Tensor:
        """(N,) merged gradient of (P, N) gradients; the new state of the part is committed."""
        part = self._part_of(step.group)
        state = part.fit_coordinates(part.state_of(step), grads, tensors)
        merged, new = part.merge(grads, state)
        merged = torch.where(step.finite, merged, torch.nan)
        part.commit(state, new, step.present, step.finite)
        products = torch.cat([grads @ merged, torch.dot(merged, merged)[None]])
        self._note(Stats(step, None, step.processes.sum(products)), step.group)
        return merged

    def _merge_nothing(self) -> TensorList:
        """What a step without gradients does."""
        self._stats = None
        return []

    def _learn(self, step: Step | None, group: str) -> list[Tensor | None]:
        """Gradients of the parameters that the merge of a group owns, times the scale of the loss."""
        part = self._part_of(group)
        parameters = [] if part is None else _learning(part)
        if not parameters:
            return []
        found: Mapping[str, Tensor] = {}
        if step is not None and step.present:
            found = part.learn(step.gram, part.state_of(step))
        gradients: list[Tensor | None] = []
        for name, parameter in part.learned.items():
            gradient = torch.zeros_like(parameter)  # so that DDP has something to average
            if step is not None and name in found:
                gradient = spread(found[name] * step.scale, step.present, step.tasks, fill=0.0)
            gradients.append(gradient.to(parameter.dtype))
        return gradients

    def _note(self, stats: Stats, group: str) -> None:
        if not group:
            self._stats = stats
            return
        names = self._groups.names
        known = {} if self._stats is None or group == names[0] else dict(self._stats.groups)
        self._stats = over_groups({**known, group: stats})

    def _decide_compiled(self, gram: Tensor, report: Tensor, extra: Tensor) -> Tensor:
        return features.decide_compiled(self._hooks(), self.processes, gram, report, extra)

    def loss_factors(self, losses: Tensor) -> Tensor:
        """(K,) product of the parts' weights of (K,) losses; no state changes."""
        return self._loss_factors(losses, losses[:, None])

    def _loss_factors(self, losses: Tensor | None, like: Tensor, *, commit: bool = False) -> Tensor:
        """(K,) product of the parts' loss weights, as far as these are known without a step."""
        parts = [part for part in self._loss_parts if losses is not None or not part.uses_losses]
        values = torch.ones_like(like[:, 0]) if losses is None else losses.detach().to(like.dtype)
        finite = torch.isfinite(like).all() & torch.isfinite(values).all()
        present = tuple(range(len(values)))
        factors = weigh(values, present, parts, finite=finite, commit=commit).factors
        return torch.ones_like(values) if factors is None else factors

    # How it is copied and saved

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy or pickle, without what belongs to this object's steps."""
        own = ("_guards", "_kept", "_stats", "_handle")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()

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


def _learning(part: GradientAggregator) -> list[Tensor]:
    """Learned parameters whose gradient the merge gives; others get theirs through the total."""
    return list(part.learned.values()) if part.overrides("learn") else []


def _check_parts(parts: Sequence[Any]) -> None:
    wrong = next((part for part in parts if not isinstance(part, GradientAggregator)), None)
    if not parts or wrong is not None:
        found = "none" if not parts else type(wrong).__name__
        raise SpecError(f"a method is made of one or more GradientAggregator parts; got {found}")
    names = {part.tasks for part in parts}
    if len(names) > 1:
        told = " and ".join(", ".join(tasks) for tasks in sorted(names))
        raise SpecError(f"all parts of a method must have the same tasks; got {told}")
    for role, verb in (("fork", "fork the features"), ("merge", "merge the gradients")):
        rivals = [part for part in parts if role in part.roles]
        if len(rivals) > 1:
            raise SpecError(
                f"{' and '.join(repr(part.name) for part in rivals)} both {verb}; a method has one part "
                f"that does: keep one of them in {format_spec([p.own_spec() for p in parts])!r}"
            )


def _join(method: Method, losses: Iterable[Tensor | None], values: Tensor, merge: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return _join_untraced(method, list(losses), values, merge)
    return loss_node.join(list(losses), values, method._hooks(), method.processes, merge=merge)  # noqa: SLF001


# torch.compiler.disable would import the compiler, which takes seconds, for everybody
_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001
_forward_untraced: Callable[[Method, Any], list[Any]] = _disable(Method.forward)
_join_untraced: Callable[[Method, list[Tensor | None], Tensor, bool], Tensor] = _disable(_join)
