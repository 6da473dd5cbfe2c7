"""The abstract :class:`GradientAggregator`: what a method is and how its parts make a step."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.host import all_finite, as_array, cast, ones, readable
from mtlkit.junction import Rows, Step, collective_group, fork
from mtlkit.registry import option_defaults
from mtlkit.spec import Part, format_spec
from mtlkit.tasks import task_names

__all__ = ["Chain", "GradientAggregator", "Stats"]

Self = TypeVar("Self", bound="GradientAggregator")
Tasks = int | Sequence[str] | Mapping[str, Any]
_ONE = torch.ones(())


class Stats(dict[str, Tensor]):
    """What the last step looked like; NaN for a task that was absent.

    ``losses``, ``norms`` and ``weights`` are (K,); ``cosines`` is the (K, K) matrix of cosines between
    the task gradients, ``update_cosines`` (K,) the cosine of each with the merged gradient.
    """

    losses: Tensor
    norms: Tensor
    cosines: Tensor
    weights: Tensor
    update_cosines: Tensor

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"stats has no {name!r}; it has {', '.join(self)}") from None

    @property
    def conflict(self) -> float:
        """Share of the pairs of tasks whose gradients have a negative cosine."""
        upper = torch.triu_indices(len(self.norms), len(self.norms), offset=1)
        cosines = self.cosines[upper[0], upper[1]]
        cosines = cosines[~torch.isnan(cosines)]
        return float((cosines < 0).float().mean()) if len(cosines) else 0.0


_ROLES = {
    "loss": frozenset({"loss_weights"}),
    "fork": frozenset({"fork"}),
    "merge": frozenset({"weights", "merge"}),
}


class GradientAggregator(nn.Module, ABC):
    """A method, or a part of one. Subclasses override the hooks of the roles that they play.

    ======================  ==================================================================
    role                    hooks
    ======================  ==================================================================
    weigh the losses        :meth:`loss_weights`, and :meth:`loss_penalty` if there is one
    fork the features       :meth:`fork`, :meth:`pull_back`
    merge the gradients     :meth:`weights`; or :meth:`merge`, if a weight per task is not enough
    ======================  ==================================================================

    Keyword-only arguments of ``__init__`` are the options of the config string; each is kept in an
    attribute of its name. Hooks are pure: what a method remembers is a buffer, and changes only in
    :meth:`update`, through :meth:`remember`. Every hook that takes the gradients or losses of the
    tasks may take ``step`` as its last argument, to find its state when a task is absent.

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
    uses_losses: ClassVar[bool] = False
    """Whether values of the losses enter, so that they are averaged over the processes."""
    traceable: ClassVar[bool] = True
    """Whether ``torch.compile`` can trace the merge; otherwise it breaks the graph there."""
    reads_gram: ClassVar[bool] = True
    """Whether :meth:`weights` depend on the Gram matrix, and not on the number of tasks alone."""
    exact_if: ClassVar[str] = ""
    """On which condition several processes take the step of one; empty for always."""
    waived_laws: ClassVar[Mapping[str, str]] = {}
    """Laws of ``tests/properties`` that do not apply, with the reason."""
    hidden_options: ClassVar[frozenset[str]] = frozenset()

    is_plain_sum: ClassVar[bool] = False
    """Whether autograd's own sum is the merge, so that ``method(features)`` may be left out."""

    _takes_step: ClassVar[frozenset[str]] = frozenset()
    _plays: ClassVar[frozenset[str]] = frozenset()
    _merges_whole: bool = False
    _rotates: ClassVar[bool] = False
    _last_losses: Tensor
    _last_gram: Tensor
    _last_weights: Tensor
    _last_products: Tensor
    _steps: Tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hooks = ("loss_weights", "fork", "weights", "merge")
        overridden = {h for h in hooks if getattr(cls, h) is not getattr(GradientAggregator, h)}
        cls._plays = frozenset(role for role, names in _ROLES.items() if overridden & names)
        cls._merges_whole = "merge" in overridden
        cls._takes_step = frozenset(
            hook for hook in hooks if "step" in inspect.signature(getattr(cls, hook)).parameters
        )
        if "merge" not in cls._plays:
            cls.hidden_options = cls.hidden_options | {"wrt", "sync"}

    def __init__(
        self,
        tasks: Tasks,
        *,
        wrt: Literal["features", "parameters"] = "features",
        sync: bool = True,
    ) -> None:
        if not self._plays:
            raise TypeError(
                f"{type(self).__name__} is abstract: override loss_weights, fork, weights or merge"
            )
        if wrt not in ("features", "parameters"):
            raise SpecError(f"wrt must be 'features' or 'parameters', not {wrt!r}")
        super().__init__()
        self.tasks = task_names(tasks)
        self.wrt = wrt
        self.sync = sync
        self.shared: list[Tensor] | None = None
        self._pending = _Pending()
        count = len(self.tasks)
        for name, shape in (
            ("_last_losses", (count,)),
            ("_last_gram", (count, count)),
            ("_last_weights", (count,)),
            ("_last_products", (count + 1,)),
        ):
            self.register_buffer(name, torch.full(shape, torch.nan), persistent=False)
        self.register_buffer("_steps", torch.zeros((), dtype=torch.long), persistent=False)

    # What a part overrides

    def loss_weights(self, losses: Tensor, step: Any = None) -> Tensor:
        """(P,) factors of the losses, given their detached values; may depend on own parameters."""
        return torch.ones_like(losses)

    def loss_penalty(self, losses: Tensor, step: Any = None) -> Tensor | None:
        """Term that is added to the total, such as the sum of UW's log-variances."""
        return None

    def fork(self, features: list[Tensor]) -> list[list[Tensor]]:
        """What each of the K tasks is given."""
        return [features] * len(self.tasks)

    def pull_back(self, grads: dict[int, list[Tensor | None]]) -> dict[int, list[Tensor | None]]:
        """Gradients with respect to the features from those with respect to what was given."""
        return grads

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """(P,) weights of the task gradients, from their (P, P) inner products."""
        if self._merges_whole:
            raise UsageError(
                f"{self} merges whole gradients and has no weight per task; call combine(grads)"
            )
        return ones(gram)

    def merge(self, grads: Tensor, step: Step | None = None) -> Tensor:
        """(N,) merged gradient from (P, N) task gradients."""
        raise NotImplementedError

    def junction_parameters(self) -> tuple[Tensor, ...]:
        """Owned tensors whose gradients :meth:`junction_gradients` computes."""
        return ()

    def junction_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Gradients of :meth:`junction_parameters`, multiplied by ``step.scale``."""
        return ()

    def join(self, parts: Sequence[GradientAggregator]) -> None:
        """Called once when a method is put together, with all its parts."""

    def prepare(self) -> None:
        """Bring owned parameters into shape before the features are forked."""

    def update(self, step: Step) -> None:
        """Keep what the next step needs, by :meth:`remember`."""

    def update_losses(self, losses: Tensor, step: Any) -> None:
        """Keep what the next step's :meth:`loss_weights` need, by :meth:`remember`."""

    def carry(self, gram: Tensor, found: Any) -> None:
        """Hand on from :meth:`weights` what :meth:`update` of the same step would compute again."""
        self._pending.scratch["carried"] = (gram, found)

    def carried(self, step: Step) -> Any:
        """What :meth:`weights` handed on for this step's Gram matrix; None if it did not."""
        gram, found = self._pending.scratch.pop("carried", (None, None))
        return found if gram is step.gram else None

    def remember(self, name: str, value: Tensor | np.ndarray, step: Any) -> None:
        """Write ``value`` into the buffer ``name``, for the present tasks, if the step is finite."""
        buffer: Tensor = getattr(self, name)
        where = _entries(buffer, step)
        if readable(buffer):
            if step.finite:  # NumPy's assignment takes a third of the time of torch's
                buffer.numpy()[where] = value if isinstance(value, np.ndarray) else as_array(value)
            return
        given = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        buffer[where] = torch.where(step.finite, given.to(buffer), buffer[where])

    def count(self, name: str, step: Any) -> None:
        """Add one to the buffer ``name``, for the present tasks, if the step is finite."""
        buffer: Tensor = getattr(self, name)
        if not readable(buffer):
            self.remember(name, buffer[_entries(buffer, step)] + 1, step)
        elif step.finite:
            buffer.numpy()[_entries(buffer, step)] += 1

    # What a user calls

    def forward(self, features: Any) -> list[Any]:
        """K features in task order, whose gradients will be merged."""
        if torch.compiler.is_compiling() and not self._traceable:
            return _fork_untraced(self, features)
        return fork(self, features)

    def total(self, losses: Mapping[str, Tensor | None] | Sequence[Tensor | None]) -> Tensor:
        """One scalar to call ``backward()`` on.

        Args:
            losses: one scalar per task, in task order or by name; None, or an absent name, is a
                task without labels in this batch.
        """
        given = self._align(losses)
        present = tuple(k for k, loss in enumerate(given) if loss is not None)
        values = [loss for loss in given if loss is not None]
        recording = self.training and torch.is_grad_enabled()
        anchor = self._take_fork(present) if recording else None
        total: Tensor | None = anchor
        if values or (recording and self._sync_losses):
            factors, penalty = self._weigh_losses(values, present, recording)
            for index, loss in enumerate(values):
                term = loss if factors is None else factors[index].to(loss.dtype) * loss
                total = term if total is None else total + term
            if penalty is not None:
                total = penalty if total is None else total + penalty
        if total is None:
            raise UsageError(
                "every loss is None and no features were forked: there is nothing to minimise; "
                "call method(features) first, or skip this batch"
            )
        return total

    @torch.no_grad()
    def combine(self, grads: Tensor) -> Tensor:
        """Merge (K, N) task gradients into (N,), and remember what a step remembers."""
        if not isinstance(grads, Tensor) or grads.dim() != 2 or grads.shape[0] != len(self.tasks):
            found = tuple(grads.shape) if isinstance(grads, Tensor) else type(grads).__name__
            raise SpecError(f"combine takes one row per task, ({len(self.tasks)}, N); got {found}")
        if not grads.is_floating_point():
            raise SpecError(f"gradients must be floating point, not {grads.dtype}")
        dtype = torch.float64 if grads.dtype == torch.float64 else torch.float32
        rows = Rows.of_matrix(grads, dtype)
        gram = rows.gram()
        everyone = tuple(range(len(self.tasks)))
        step = Step(
            present=everyone,
            complete=True,
            gram=gram,
            feature_gram=gram,
            finite=all_finite(gram),
            scale=_ONE if gram.is_cpu else gram.new_ones(()),
            local=everyone,
            grads=_MatrixRows(grads),
            rows=rows,
        )
        step.losses = self._losses_of(step)
        (merged,) = self._merge_step(step, in_features=False)
        self._finish(step)
        return cast(merged, grads.dtype)

    @property
    def stats(self) -> Stats | None:
        """The last step, read off its Gram matrix; None before the first."""
        record = self._pending.record
        if record is None:
            if int(self._steps) == 0:
                return None
            record = _Record(self._last_gram, self._last_weights, self._last_products)
        else:
            record = record.over(len(self.tasks))
        gram, weights, products = record.gram, record.weights, record.products
        assert weights is not None
        assert products is not None
        norms = gram.diagonal().sqrt()
        scales = norms[:, None] * norms[None, :]
        update_scales = norms * products[-1].sqrt()
        losses = self._known_losses()
        return Stats(
            losses=torch.full_like(norms, torch.nan) if losses is None else losses.to(norms.dtype),
            norms=norms,
            # a zero gradient has no direction; its cosine with anything is taken as zero
            cosines=torch.where(scales == 0, 0.0, gram / scales).clamp(-1, 1),
            weights=weights.clone(),
            update_cosines=torch.where(update_scales == 0, 0.0, products[:-1] / update_scales).clamp(
                -1, 1
            ),
        )

    @property
    def last_gram(self) -> Tensor | None:
        """(P, P) inner products of the gradients merged last; None before, and in compiled graphs."""
        return None if self._pending.record is None else self._pending.record.gram

    @property
    def rotations(self) -> Tensor:
        """(K, m, m) current rotations, where a part rotates."""
        for part in self.parts:
            if part._rotates and part is not self:
                return part.rotations
        # an AttributeError would be taken for a missing attribute by nn.Module, and hidden
        raise UsageError(f"{self} has no rotations; use 'rotate+...' or 'rotograd'")

    @property
    def process_group(self) -> Any:
        """Process group of the data-parallel replicas; None means all processes."""
        return self._pending.process_group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._pending.process_group = group

    def set_shared(self, shared: nn.Module | Iterable[Tensor] | None) -> None:
        """Name the shared parameters, for ``wrt=parameters``; without, all below the features."""
        if shared is None:
            self.shared = None
            return
        found = shared.parameters() if isinstance(shared, nn.Module) else shared
        try:
            tensors = list(found)
        except TypeError:
            tensors = [None]  # type: ignore[list-item]
        if not tensors or not all(isinstance(t, Tensor) for t in tensors):
            raise SpecError(
                f"shared must be a module or a list of parameters, not {type(shared).__name__}"
                + ("" if tensors else " without any")
            )
        self.shared = tensors

    @property
    def parts(self) -> tuple[GradientAggregator, ...]:
        """The parts of this method, left to right."""
        return (self,)

    @property
    def spec(self) -> list[Part]:
        """Names and options of the parts; options left at their defaults are not listed."""
        return [part._own_spec() for part in self.parts]

    def __str__(self) -> str:
        return format_spec(self.spec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self)!r}, tasks: {', '.join(self.tasks)}>"

    # How the parts make a step

    @property
    def merge_part(self) -> GradientAggregator | None:
        """The part that merges; None means the plain sum."""
        return next((part for part in self.parts if "merge" in part._plays), None)

    @property
    def needs_features(self) -> bool:
        """Whether the features must be forked by ``method(features)`` in every step."""
        merge = self.merge_part
        plain = merge is None or merge.is_plain_sum
        return not plain or any("fork" in part._plays for part in self.parts)

    @property
    def _group(self) -> Any:
        return collective_group(self)

    @property
    def _wrt_parameters(self) -> bool:
        merge = self.merge_part
        return merge is not None and merge.wrt == "parameters"

    @property
    def _sync(self) -> bool:
        merge = self.merge_part
        return merge is None or merge.sync

    @property
    def _traceable(self) -> bool:
        # a traced backward would read the losses of the step before
        reads_losses = self.merge_part is not None and self.merge_part.uses_losses
        traceable = all(part.traceable for part in self.parts)
        return traceable and not reads_losses and not self._wrt_parameters

    @property
    def _sync_losses(self) -> bool:
        return any(part.uses_losses for part in self.parts)

    def _own_spec(self) -> Part:
        defaults = option_defaults(type(self))
        current = {key: getattr(self, key) for key in defaults}
        return Part(self.name, {k: v for k, v in current.items() if v != defaults[k]})

    def _prepare(self) -> None:
        if not _in_backward():  # a checkpoint runs the forward again there; nothing may change
            for part in self.parts:
                part.prepare()

    def _fork_leaves(self, leaves: list[Tensor]) -> list[list[Tensor]]:
        for part in self.parts:
            if "fork" in part._plays:
                return part.fork(leaves)
        return [leaves] * len(self.tasks)

    def _pull_back(self, grads: dict[int, list[Tensor | None]]) -> dict[int, list[Tensor | None]]:
        for part in self.parts:
            grads = part.pull_back(grads)
        return grads

    def _merge_step(self, step: Step, *, in_features: bool) -> list[Tensor]:
        """The merged gradient, as one tensor for each of the list that the rows were taken of."""
        assert step.rows is not None
        if not step.present:
            return []
        merge = self.merge_part
        over_parameters = step.over_parameters
        if merge is not None and merge._merges_whole:
            return self._merge_whole(merge, step, over_parameters and in_features)
        weights = cast(self._call("weights", merge or self, step.gram, step), step.gram.dtype)
        if not readable(weights) or not step.finite:
            weights = torch.where(step.finite, weights, torch.nan)
        step.weights = weights
        self._record(step, weights)
        if over_parameters and in_features:
            rows, tasks = step.feature_rows(), step.local
        else:
            rows = step.rows
            tasks = step.present if over_parameters else step.local
        if not tasks:
            return []
        chosen = weights if tasks == step.present else weights[[step.present.index(k) for k in tasks]]
        return rows.weighted(chosen)

    def _merge_whole(self, merge: GradientAggregator, step: Step, in_features: bool) -> list[Tensor]:
        if in_features:
            raise UsageError(
                f"{merge} merges whole gradients, so with wrt=parameters every parameter below the "
                "features must be in `shared`; pass the whole backbone as shared, or wrt=features"
            )
        assert step.rows is not None
        if not step.local and not step.over_parameters:
            step.all_reduce(step.gram.new_zeros(len(step.present) + 1))
            return []
        matrix = step.rows.matrix()  # (P, N)
        if not step.over_parameters and step.local != step.present:
            complete = matrix.new_zeros(len(step.present), matrix.shape[1])
            complete[[step.present.index(k) for k in step.local]] = matrix
            matrix = complete
        merged = self._call("merge", merge, matrix, step)
        if not readable(merged) or not step.finite:
            merged = torch.where(step.finite, merged, torch.nan)
        products = torch.cat([matrix @ merged, torch.dot(merged, merged)[None]])
        if step.scale is not _ONE:
            products = products / step.scale.square()
        if not step.over_parameters and step.group is not None:
            products = step.all_reduce(products) / step.world**2
        self._record(step, None, products)
        return step.rows.split(merged)

    def _finish(self, step: Step) -> None:
        for part in self.parts:
            part.update(step)

    def _record(self, step: Step, weights: Tensor | None, products: Tensor | None = None) -> None:
        """Keep the step's figures for :attr:`stats`, which works out the rest when it is read."""
        record = _Record(step.gram, weights, products, step.present)
        if not torch.compiler.is_compiling():
            self._pending.record = record
            return
        record = record.over(len(self.tasks))  # a traced graph can only write to buffers
        self._last_gram.copy_(record.gram)
        assert record.weights is not None
        assert record.products is not None
        self._last_weights.copy_(record.weights)
        self._last_products.copy_(record.products)
        self._steps.add_(1)

    def _call(self, hook: str, part: GradientAggregator, *args: Any) -> Tensor:
        """Call a hook; ``step``, the last argument, is left out where the part does not take it."""
        function = getattr(part, hook)
        return function(*args) if hook in part._takes_step else function(*args[:-1])

    def _align(self, losses: Any) -> list[Tensor | None]:
        """Losses in task order, each a scalar tensor or None."""
        if isinstance(losses, Mapping):
            for key in losses:
                if key not in self.tasks:
                    raise unknown_name("task", str(key), self.tasks)
            given = [losses.get(name) for name in self.tasks]
        elif isinstance(losses, Tensor):
            raise SpecError(
                f"losses must be a sequence or mapping of {len(self.tasks)} scalars, not one tensor "
                f"of shape {tuple(losses.shape)}: in one tensor, each task's backward would walk "
                "every task's graph"
            )
        else:
            given = list(losses)
            if len(given) != len(self.tasks):
                raise SpecError(
                    f"{len(given)} losses for {len(self.tasks)} tasks ({', '.join(self.tasks)}); "
                    "give one per task, None for a task without labels, or a mapping by name"
                )
        for name, loss in zip(self.tasks, given, strict=True):
            if loss is not None and not isinstance(loss, Tensor):
                raise SpecError(
                    f"the loss of task {name!r} is {type(loss).__name__}; expected a scalar tensor, "
                    "or None for a task without labels"
                )
            if loss is not None and loss.dim() != 0:
                raise SpecError(
                    f"the loss of task {name!r} has shape {tuple(loss.shape)}; expected a scalar: "
                    "reduce it, for example with .mean()"
                )
        return given

    def _weigh_losses(
        self, values: list[Tensor], present: tuple[int, ...], recording: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Product of the parts' loss weights and sum of their penalties, for the local tasks."""
        step = self._loss_step(values, present, recording)
        if recording:
            self._keep_losses(step)
        factors: Tensor | None = None
        penalty: Tensor | None = None
        if not step.present:
            return None, None
        current = step.losses
        for part in self.parts:
            if "loss" not in part._plays:
                continue
            weights = self._call("loss_weights", part, current, step)
            term = part.loss_penalty(current, step)
            if term is not None:
                penalty = term if penalty is None else penalty + term
            if recording:
                with torch.no_grad():
                    part.update_losses(current, step)
            factors = weights if factors is None else factors * weights
            current = current * weights.detach()
        if factors is not None and step.present != present:
            factors = factors[[step.present.index(k) for k in present]]
        return factors, penalty

    def _loss_step(self, values: list[Tensor], present: tuple[int, ...], recording: bool) -> _LossStep:
        if values:
            dtype = torch.float64 if values[0].dtype == torch.float64 else torch.float32
            losses = torch.stack([loss.detach().to(dtype) for loss in values])
        else:
            losses = self._last_losses.new_zeros(0)
        group = collective_group(self) if recording and self._sync_losses else None
        if group is not None:
            # one dtype on every process, also on one without any loss
            dtype = torch.float32 if losses.device.type == "mps" else torch.float64
            message = torch.zeros(2, len(self.tasks), dtype=dtype, device=losses.device)
            message[0, list(present)] = losses.to(dtype)
            message[1, list(present)] = 1
            dist.all_reduce(message, group=group)
            present = tuple(torch.nonzero(message[1]).flatten().tolist())
            losses = (message[0, list(present)] / dist.get_world_size(group)).to(losses.dtype)
        return _LossStep(present, len(present) == len(self.tasks), losses)

    def _keep_losses(self, step: _LossStep) -> None:
        if torch.compiler.is_compiling():
            self._pending.losses = None
            self._last_losses.copy_(_spread(step.losses, step.present, len(self.tasks)))
        else:
            self._pending.losses = (step.present, step.losses)

    def _known_losses(self) -> Tensor | None:
        """(K,) losses of the last :meth:`total`, NaN for absent tasks."""
        if self._pending.losses is not None:
            present, losses = self._pending.losses
            return _spread(losses, present, len(self.tasks))
        return self._last_losses if self._pending.has_losses else None

    def _losses_of(self, step: Step) -> Tensor | None:
        if self._pending.losses is not None and self._pending.losses[0] == step.present:
            return self._pending.losses[1]
        losses = self._known_losses()
        return None if losses is None else step.pick(losses)

    # Bookkeeping that catches calls which do not make a step

    def _remember_fork(self, anchor: Tensor) -> None:
        self._pending.anchor = anchor
        if torch.compiler.is_compiling():
            self._pending.record = None  # the figures of a traced step are in the buffers
        elif not _in_backward():
            self._pending.add(anchor)

    def _take_fork(self, present: tuple[int, ...]) -> Tensor | None:
        pending = self._pending
        anchor, pending.anchor = pending.anchor, None
        pending.has_losses = True
        pending.given = present
        if torch.compiler.is_compiling():
            return anchor
        if pending.alive() > 1:
            pending.clear()
            raise UsageError(
                "the features were forked twice before total(losses); call method(features) once "
                "per step (put several tensors into one list or dict), or run the extra pass under "
                "torch.no_grad()"
            )
        pending.clear()
        nothing_to_merge, pending.nothing_to_merge = pending.nothing_to_merge, False
        if anchor is None and self.needs_features and not nothing_to_merge:
            raise UsageError(
                f"total(losses) before method(features): {self} merges gradients at the features, so "
                "give the heads what method(features) returns, once per step"
            )
        return anchor

    def _check_backward(self, through_total: bool, arrived: tuple[int, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        if not through_total and len(arrived) < len(self.tasks):
            missing = [name for k, name in enumerate(self.tasks) if k not in arrived]
            raise UsageError(
                f"a backward reached the junction without task(s) {', '.join(missing)} and not "
                "through total(losses); call backward() once, on method.total(losses)"
            )
        # the anchor of a peer without labels brings no gradient at all: that is in order
        if through_total and not arrived and self._pending.given:
            raise UsageError(
                "no task's gradient reached the junction: the heads were not given what "
                "method(features) returned"
            )

    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        """Keep state in float32 or better when a model is cast to half precision."""

        def careful(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if tensor.is_floating_point() and result.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(result.device)
            return result

        return super()._apply(careful, recurse)


class Chain(GradientAggregator):
    """Several parts as one method: ``normalize+rotate+scale``."""

    name = "chain"

    def __init__(self, parts: Sequence[GradientAggregator]) -> None:
        super().__init__(parts[0].tasks)
        for role, verb in (("fork", "fork the features"), ("merge", "merge the gradients")):
            rivals = [part.name for part in parts if role in part._plays]
            if len(rivals) > 1:
                raise SpecError(
                    f"{' and '.join(map(repr, rivals))} both {verb}; a method has one part that "
                    f"does: keep one of them in {format_spec([p._own_spec() for p in parts])!r}"
                )
        self.stages = nn.ModuleDict()
        for part in parts:
            key = part.name.replace(".", "_")
            while key in self.stages:
                key += "_"
            self.stages[key] = part
        for part in parts:
            part.join(parts)

    @property
    def parts(self) -> tuple[GradientAggregator, ...]:
        """The parts of this method, left to right."""
        return tuple(self.stages.values())  # type: ignore[arg-type]

    def weights(self, gram: Tensor, step: Step | None = None) -> Tensor:
        """The merging part's weights; ones where no part merges."""
        merge = self.merge_part
        return super().weights(gram) if merge is None else self._call("weights", merge, gram, step)


class _MatrixRows(Mapping[int, list[Tensor | None]]):
    """Rows of a matrix as :attr:`Step.grads`; few methods ask for them, so none is made before."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def __getitem__(self, task: int) -> list[Tensor | None]:
        return [self._matrix[task]]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._matrix)))

    def __len__(self) -> int:
        return len(self._matrix)


class _Record:
    """A step's Gram matrix, its weights if there are any, and the products with the merged gradient."""

    def __init__(
        self,
        gram: Tensor,
        weights: Tensor | None,
        products: Tensor | None = None,
        present: tuple[int, ...] = (),
    ) -> None:
        self.gram, self.weights, self.products, self.present = gram, weights, products, present

    def over(self, tasks: int) -> _Record:
        """The same with the products worked out, and NaN for tasks that were absent."""
        products, weights = self.products, self.weights
        if weights is None:
            weights = torch.full_like(self.gram[0], torch.nan)
        if products is None:  # merged = sum_k w_k g_k: they follow from the Gram matrix
            inner = self.gram @ weights
            products = torch.cat([inner, (weights @ inner).clamp(min=0).reshape(1)])
        if len(self.present) == tasks:
            return _Record(self.gram, weights, products)
        index = torch.tensor(self.present, device=self.gram.device)
        empty = torch.full((tasks, tasks), torch.nan, dtype=self.gram.dtype, device=self.gram.device)
        return _Record(
            empty.index_put((index[:, None], index[None, :]), self.gram),
            _spread(weights, self.present, tasks),
            torch.cat([_spread(products[:-1], self.present, tasks), products[-1:]]),
        )


def _entries(buffer: Tensor, step: Any) -> Any:
    """Index of the present tasks in a buffer with a row per task; of all in one that has none."""
    return list(step.present) if buffer.dim() and not step.complete else ...


def _spread(values: Tensor, present: tuple[int, ...], tasks: int) -> Tensor:
    """(P,) values of the present tasks as (K,), NaN elsewhere."""
    if len(present) == tasks:
        return values
    spread = torch.full((tasks,), torch.nan, dtype=values.dtype, device=values.device)
    return spread.index_copy(0, torch.tensor(present, device=values.device, dtype=torch.long), values)


class _LossStep:
    """What :meth:`GradientAggregator.total` knows: the losses and the tasks that have one."""

    def __init__(self, present: tuple[int, ...], complete: bool, losses: Tensor) -> None:
        self.present = present
        self.complete = complete
        self.losses = losses

    @property
    def finite(self) -> Tensor:
        """Whether all losses are."""
        return torch.isfinite(self.losses).all()

    pick = Step.pick


class _Pending:
    """What lives between a fork and its backward. It is not copied or saved with the method."""

    def __init__(self) -> None:
        self.anchor: Tensor | None = None
        self.given: tuple[int, ...] = ()
        self.has_losses = False
        self.nothing_to_merge = False
        self.process_group: Any = None
        self.losses: tuple[tuple[int, ...], Tensor] | None = None
        self.record: _Record | None = None
        self.scratch: dict[str, Any] = {}
        self._nodes: list[weakref.ref[Any]] = []

    def add(self, anchor: Tensor) -> None:
        """Note a fork; it counts as long as something still refers to its graph."""
        self._nodes = [node for node in self._nodes if node() is not None]
        self._nodes.append(weakref.ref(anchor.grad_fn))

    def alive(self) -> int:
        """How many forks since the last total still have a graph."""
        return sum(node() is not None for node in self._nodes)

    def clear(self) -> None:
        """Forget the forks."""
        self._nodes = []

    def __deepcopy__(self, memo: Any) -> _Pending:
        copy = _Pending()
        copy.process_group = self.process_group
        return copy

    def __reduce__(self) -> Any:
        return _Pending, ()


def _in_backward() -> bool:
    """Whether autograd is running: a checkpoint is computing the forward again."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1


@torch.compiler.disable
def _fork_untraced(method: GradientAggregator, features: Any) -> list[Any]:
    return fork(method, features)
