"""The object that users call: a method forks features, adds up losses, and merges gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from mtlkit.engine import features
from mtlkit.engine import losses as loss_node
from mtlkit.engine.guards.steps import Fork
from mtlkit.engine.processes import ALONE
from mtlkit.engine.step import step_of
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.method.composition import Composition, state_of
from mtlkit.method.losses import Losses
from mtlkit.method.stats import Stats, over_groups


class Method(Composition):
    """A method of multi-task learning: parts that weigh losses, fork features and merge gradients.

    Made by :func:`mtlkit.create_method`, or from parts.

    Args:
        parts: instances of :class:`~mtlkit.GradientAggregator`, left to right; at most one that forks
            and one that merges. Without one that merges, gradients are added.
        shared: shared modules or parameters, for ``wrt=parameters``; a mapping gives each group of
            parameters a merge of its own.

    Example:
        >>> from mtlkit.weighting import PCGrad, UW
        >>> method = Method([UW(2), PCGrad(2)])
        >>> str(method)
        'uw+pcgrad'
        >>> method.combine(torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
        tensor([0.2500, 0.7500])
    """

    # What a user calls

    def forward(self, shared_features: Any) -> list[Any]:
        """K features in task order, whose gradients will be merged."""
        if torch.compiler.is_compiling() and not self._traceable:
            return _forward_untraced(self, shared_features)
        if self.training:
            self._guards.before_fork(self)
        recorded = self.training and torch.is_grad_enabled()
        if not recorded or self._merges_shards:  # those are merged by mtlkit.backward, without a fork
            return features.fork_unrecorded(shared_features, self.forking, len(self.tasks))
        record = Fork(self.processes)
        views, anchor = features.fork(shared_features, self._hooks(), record)
        self._guards.after_fork(record, anchor)
        return views

    def total(
        self, losses: Losses, merge: bool = True, factors: Sequence[float] | Tensor | None = None
    ) -> Tensor:
        """One scalar to call ``backward()`` on.

        Args:
            losses: one scalar per task, in task order or by name; None, or an absent name, is a
                task without labels in this batch. Without a fork, a parameter that one of them alone
                reaches gets that task's own gradient, also where the others have no labels.
            merge: False keeps this micro-batch's gradients of the shared parameters and delivers none;
                the next call with True merges their sum. For ``wrt=parameters`` only.
            factors: one number per task that its loss is multiplied by in the total, such as a drawn
                preference. Parts that weigh losses read the losses without it.

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
        if not (merge or self.wrt_parameters):
            _refuse_to_keep(self)
        if factors is not None and len(factors) != len(self.tasks):
            _refuse_factors(factors, self.tasks)
        recording = self.training and torch.is_grad_enabled()
        anchor = self._guards.anchor_of(self, given, merge) if recording else None
        if anchor is None:
            return self._total_without_fork(given, merge, recording, factors)
        weighed, values, extra = self._weigh_losses(given, self.processes, commit=merge)
        terms: list[Tensor] = _times(factors, weighed)
        terms.append(features.Report.apply(anchor, values, tuple(weighed)))
        if extra is not None:
            terms.append(extra)
        return sum(terms[1:], terms[0])

    def _total_without_fork(
        self,
        given: dict[int, Tensor],
        merge: bool,
        recording: bool,
        factors: Sequence[float] | Tensor | None,
    ) -> Tensor:
        """The total of losses whose features were not forked in this step."""
        extra: Tensor | None = None
        if self.weighs_losses or not self.is_sum:
            processes = self.processes if recording else ALONE
            given, values, extra = self._weigh_losses(given, processes, commit=recording and merge)
        terms = _times(factors, given)
        if recording and self.is_sum:
            self._guards.check_plain_sum(given, self.processes)
        elif recording:
            self._guards.before_unforked(self, given, self.processes, needs_fork=self.needs_fork)
            if not self.needs_fork and (given or self._kept.batches or not self.processes.alone):
                by_task = dict(zip(given, terms, strict=True))
                in_order = [by_task.get(task) for task in range(len(self.tasks))]
                terms = [_join(self, in_order, values, merge)]
        if extra is not None:
            terms.append(extra)
        if not terms:
            self._guards.refuse_empty(recording and not self.processes.alone)
        total = sum(terms[1:], terms[0])
        if not self.training:
            self._guards.after_evaluation(self, total)
        return total

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
        present, values = self._values(given, self.processes)
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
            if self.weighs_losses:
                rows = self._loss_factors(losses, rows, commit=True)[:, None] * rows
            step = step_of(rows @ rows.T, tuple(range(len(rows))), tasks=len(rows), losses=losses)
            self._noted.clear()
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
        step = step_of(factors[:, None] * gram * factors, tuple(range(len(gram))), tasks=len(gram))
        weights, _ = self.merging.weigh(step.gram, state_of(self.merging, step))
        return factors * weights.to(gram.dtype)

    @property
    def stats(self) -> Stats | None:
        """The last step, read off its Gram matrix; None before the first, or if nothing was merged."""
        groups = {name: Stats(*noted) for name, noted in self._noted.items()}
        return over_groups(groups) if groups.keys() - {""} else groups.get("")

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

    def set_epoch_length(self, batches: int) -> None:
        """Tell parts that count epochs, such as ``dwa``, how many batches one has."""
        for part in self._parts:
            part.set_epoch_length(batches)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and forget features that were forked for a total that never came."""
        self._guards.forget()
        return super().train(mode)


def align(losses: Any, tasks: Sequence[str]) -> dict[int, Tensor]:
    """The losses that are given, by the task's index, as scalars."""
    if isinstance(losses, Mapping):
        named = {str(key): loss for key, loss in losses.items()}
        given = [named.get(name) for name in tasks]
        if not named.keys() <= set(tasks):
            raise unknown_name("task", next(key for key in named if key not in tasks), tasks)
    elif isinstance(losses, Tensor) or not isinstance(losses, Iterable):
        _refuse_losses(losses, tasks)
    else:
        given = list(losses)
    single = [loss is None or (isinstance(loss, Tensor) and loss.numel() == 1) for loss in given]
    if len(given) != len(tasks) or not all(single):
        _refuse_given(given, tasks)
    present = {task: loss for task, loss in enumerate(given) if loss is not None}
    return {task: loss.reshape(()) if loss.dim() else loss for task, loss in present.items()}


def _refuse_to_keep(method: Method) -> NoReturn:
    raise UsageError(
        f"merge=False keeps gradients of parameters, and {method} merges those of the features, each "
        "micro-batch apart: create the method with wrt=parameters, or leave merge out"
    )


def _refuse_factors(factors: Sequence[float] | Tensor, tasks: Sequence[str]) -> NoReturn:
    raise SpecError(
        f"{len(factors)} factors for {len(tasks)} tasks ({', '.join(tasks)}); give one per task, in "
        "task order"
    )


def _refuse_losses(losses: Any, tasks: Sequence[str]) -> NoReturn:
    """Raise for losses that are not one value per task."""
    is_tensor = isinstance(losses, Tensor)
    found = f"one tensor of shape {tuple(losses.shape)}" if is_tensor else type(losses).__name__
    raise SpecError(
        f"losses must be {len(tasks)} separate scalars in task order or by name "
        f"({', '.join(tasks)}), not {found}"
    )


def _refuse_given(given: Sequence[Any], tasks: Sequence[str]) -> NoReturn:
    """Raise for a number of losses that is not that of the tasks, or one that is no scalar."""
    if len(given) != len(tasks):
        raise SpecError(
            f"{len(given)} losses for {len(tasks)} tasks ({', '.join(tasks)}); give one per task, "
            "None for a task without labels, or a mapping by name"
        )
    pairs = zip(tasks, given, strict=True)
    name, loss = next(
        (n, x) for n, x in pairs if not (x is None or (isinstance(x, Tensor) and x.numel() == 1))
    )
    if isinstance(loss, Tensor):
        raise SpecError(
            f"the loss of task {name!r} has shape {tuple(loss.shape)}; expected a scalar: reduce it, "
            "for example with .mean()"
        )
    raise SpecError(
        f"the loss of task {name!r} is {type(loss).__name__}; expected a scalar tensor, or None for a "
        "task without labels"
    )


def _times(factors: Sequence[float] | Tensor | None, losses: dict[int, Tensor]) -> list[Tensor]:
    """The losses times the factors of their tasks."""
    return [loss if factors is None else factors[task] * loss for task, loss in losses.items()]


def _join(method: Method, losses: Iterable[Tensor | None], values: Tensor, merge: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return _join_untraced(method, list(losses), values, merge)
    return loss_node.join(list(losses), values, method._hooks(), method.processes, merge=merge)  # noqa: SLF001


# torch.compiler.disable would import the compiler, which takes seconds, for everybody
_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001
_forward_untraced: Callable[[Method, Any], list[Any]] = _disable(Method.forward)
_join_untraced: Callable[[Method, list[Tensor | None], Tensor, bool], Tensor] = _disable(_join)
