"""Models that FSDP2 has sharded: one ordinary backward pass per task, then a merge of the shards.

FSDP's hooks allow several ``backward()`` calls over one graph, but not ``autograd.grad`` to its
parameters. So the shards that each pass leaves in ``.grad`` are taken away as the task's row. Only the
(K, K) inner products are added up over the processes; the memory needed is K shards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.engine.accumulation import Row
from mtlkit.engine.gradients import Gradients
from mtlkit.engine.graph import leaves_below
from mtlkit.engine.guards.parameters import check_sharded
from mtlkit.engine.parameters import add_up
from mtlkit.engine.processes import Processes, processes_of
from mtlkit.engine.step import Hooks, divisor, merge_parameters
from mtlkit.errors import UsageError


def is_sharded(parameters: Any) -> bool:
    """Return whether FSDP2 has sharded some of a module, a list of parameters, or groups of these."""
    tensors = _tensors_of(parameters)
    return any(map(_is_shard, tensors)) or bool(_holders(tensors))  # FSDP may have gathered them


def reshard(parameters: Any) -> tuple[Any, list[Any]]:
    """Free what FSDP has gathered for the forward.

    Returns the parameters, where those that were listed one by one are the shards of what is no longer
    gathered, and the FSDP modules of the models that hold them.
    """
    known = _fsdp_modules()
    shown = _slots(known)
    tensors = _tensors_of(parameters)
    holders, visible = _holders(tensors), {*map(id, shown)}
    if any(_is_shard(tensor) and id(tensor) not in visible for tensor in tensors):
        for module in known:  # it was listed earlier, and is hidden while it is gathered
            module.reshard()
        holders += _holders(tensors)
    inside = {id(module) for holder in holders for module in holder.modules()}
    modules = [module for module in known if id(module) in inside]
    for module in modules:
        module.reshard()
    shards = {id(old): new for old, new in zip(shown, _slots(known), strict=True)}
    return _replaced(parameters, shards), modules


def listed(parameters: Any) -> set[int]:
    """Identities of the parameters that are given one by one, not by their module."""
    if isinstance(parameters, Mapping):
        return set().union(*map(listed, parameters.values()))
    return set() if isinstance(parameters, nn.Module) else {*map(id, parameters)}


def _replaced(parameters: Any, shards: Mapping[int, Tensor]) -> Any:
    if isinstance(parameters, Mapping):
        return {name: _replaced(given, shards) for name, given in parameters.items()}
    if isinstance(parameters, nn.Module):
        return parameters
    return [shards.get(id(tensor), tensor) for tensor in parameters]


def _tensors_of(parameters: Any) -> list[Tensor]:
    if isinstance(parameters, Mapping):
        return [tensor for given in parameters.values() for tensor in _tensors_of(given)]
    return [*parameters.parameters()] if isinstance(parameters, nn.Module) else [*(parameters or ())]


def _fsdp_modules() -> list[Any]:
    """All modules that ``fully_shard`` was called on, in this order.

    A root holds what none of its children shards. So those of a given module are not enough.
    """
    states: Any = sys.modules.get("torch.distributed._composable_state")
    known = list(getattr(states, "_module_state_mapping", ()))
    return [module for module in known if hasattr(module, "set_is_last_backward")]


def _holders(tensors: Iterable[Tensor]) -> list[Any]:
    """The FSDP modules that hold some of the tensors, themselves or in a child."""
    ids = {id(tensor) for tensor in tensors}
    return [m for m in _fsdp_modules() if not ids.isdisjoint(map(id, m.parameters()))]


def _slots(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The parameters of modules, shards or gathered, in an order that gathering does not change."""
    return [p for m in modules for _, p in m.named_parameters(remove_duplicate=False)]


@dataclass
class Sharded:
    """Parameters whose gradients are merged, and the processes that hold their shards.

    Attributes:
        tensors: those that are trained; a few may be whole on every process.
        modules: the FSDP modules of the models that hold them.
        device: type of the devices that hold the shards.
        processes: those of the device mesh.
    """

    tensors: list[Tensor]
    modules: list[Any]
    device: str
    processes: Processes

    @classmethod
    def of(
        cls, tensors: Iterable[Tensor], modules: list[Any], owned: Iterable[Tensor], listed: set[int]
    ) -> Sharded:
        """The parameters that are trained, without those that the method owns.

        Args:
            tensors: what the user named, resharded.
            modules: of :func:`fsdp_modules`.
            owned: the method's parameters.
            listed: of :func:`listed`.
        """
        apart = {id(tensor) for tensor in owned}
        trained = {id(t): t for t in tensors if t.requires_grad and id(t) not in apart}
        chosen = list(trained.values())
        mesh = check_sharded(chosen, listed)
        return cls(chosen, modules, mesh.device_type, processes_of(mesh.get_group()))

    def complete(self, losses: Mapping[int, Tensor], names: Sequence[str]) -> dict[int, Tensor]:
        """The losses of all tasks that some process has; zero times another one where it is missing.

        Every process must run the same backward passes, since these communicate. Where a task is missing
        somewhere, what the passes reach is compared, so that the processes raise an error instead of
        waiting for each other.
        """
        own = {task: loss for task, loss in losses.items() if loss.requires_grad}
        tasks = range(len(names))
        some, every = self._extremes([task in own for task in tasks])
        other = next(iter(own.values()), None)
        if some == every and other is not None:
            return own
        known, has_any = self._positions(), [other is not None]
        reached = [_mark(own.get(task, other), known) for task in tasks]
        largest, smallest = self._extremes([*has_any, *reached])
        if other is None or not smallest[0]:
            raise UsageError(
                "a process has no loss in this step, and FSDP makes the others wait for its backward "
                "pass; give every process a labeled sample, or skip the batch on all of them"
            )
        differing = [names[k] for k in tasks if some[k] and largest[k + 1] != smallest[k + 1]]
        if differing:
            raise UsageError(
                f"the loss of task(s) {', '.join(differing)} reaches other parameters on one process "
                "than on another, and FSDP would wait for the missing ones; where a task has no labels, "
                "give 0 * prediction.sum() as its loss, so that its head takes part"
            )
        missing = {task: losses.get(task, 0.0) + 0.0 * other for task in tasks}
        return {task: own.get(task, missing[task]) for task in tasks if some[task]}

    def _extremes(self, numbers: Sequence[float]) -> tuple[list[float], list[float]]:
        """The largest and the smallest of each number over the processes."""
        own = torch.tensor(numbers, dtype=torch.float64, device=self.processes.device)
        message = torch.stack([own, -own])
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.processes.group)
        return message[0].tolist(), (-message[1]).tolist()

    def _positions(self) -> dict[int, int]:
        """A number for each parameter that a graph may hold, the same on every process.

        A graph holds the gathered parameters, which FSDP shows while their module is gathered.
        """
        found = {id(tensor): place for place, tensor in enumerate(self.tensors)}
        for module in self.modules:
            module.unshard()
            for tensor in module.parameters():
                found.setdefault(id(tensor), len(found))
            module.reshard()
        return found

    def rows(
        self, losses: Mapping[int, Tensor], extra: Tensor | None, scale: Tensor, retain_graph: bool
    ) -> dict[int, Row]:
        """One row of shards per task, by one backward pass per loss; ``extra`` goes with the last."""
        rows: dict[int, Row] = {}
        last = max(losses)
        try:
            for task, loss in losses.items():
                terms = [loss] if extra is None or task != last else [loss, extra]
                self._set_last(task == last)
                retain = retain_graph or task != last
                torch.autograd.backward(terms, [scale.to(term) for term in terms], retain_graph=retain)
                if self.device != "cpu":  # FSDP waits for its streams after the last pass only
                    torch.get_device_module(self.device).synchronize()
                rows[task] = [self._take(tensor) for tensor in self.tensors]
        finally:
            self._set_last(True)
        return rows

    def _set_last(self, last: bool) -> None:
        for module in self.modules:
            module.set_is_last_backward(last)
            module.set_requires_gradient_sync(True)  # rows are kept as shards, also with merge=False

    def _take(self, tensor: Tensor) -> Tensor | None:
        """This process's shard of the gradient; ``.grad`` is left empty."""
        gradient: Any = tensor.grad
        tensor.grad = None
        if gradient is None:
            return None
        # FSDP has averaged the gradients of what it shards, and of nothing else
        return gradient.to_local() if _is_shard(tensor) else self.processes.mean(gradient)


class _Shards(Gradients):
    """Rows of which every process holds other columns; those of whole parameters are on all."""

    def __init__(
        self,
        rows: Mapping[int, Row],
        dtype: torch.dtype,
        tensors: Sequence[Tensor],
        processes: Processes,
    ) -> None:
        super().__init__(rows, dtype, tensors)
        self.processes = processes

    def take(self, columns: Sequence[int]) -> _Shards:
        part = super().take(columns)
        return _Shards(part.rows, part.dtype, part.tensors, self.processes)

    def gram(self) -> Tensor:
        """(P, P) inner products of the whole gradients; the same on every process."""
        counted = [_is_shard(tensor) or self.processes.rank == 0 for tensor in self.tensors]
        own = {
            task: [
                g if g is None or here else g.reshape(-1)[:0]
                for g, here in zip(row, counted, strict=True)
            ]
            for task, row in self.rows.items()
        }
        gram = Gradients(own, self.dtype).gram()
        return self.processes.sum(gram.to(self.processes.device)).to(gram.device)


def backward(
    losses: Mapping[int, Tensor],
    values: Tensor,
    extra: Tensor | None,
    sharded: Sharded,
    hooks: Hooks,
    *,
    merge: bool,
    scale: Tensor | None,
    retain_graph: bool,
) -> None:
    """Merge the tasks' gradients of sharded parameters and add the result to ``.grad``.

    Args:
        losses: those of the tasks that are present on some process, weighed by the loss parts.
        values: (K,) values of the losses, NaN for absent tasks.
        extra: term of the total that only parameters of the method enter.
        sharded: parameters whose gradients are merged; those of others add up over the tasks.
        hooks: what the method gives the engine.
        merge: False keeps the shards for a later call.
        scale: factor of the total; None for one.
        retain_graph: keep the graph for another backward.
    """
    tensors = sharded.tensors
    before = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    scale = values.new_ones(()) if scale is None else scale.detach()
    rows: Mapping[int, Row] = sharded.rows(losses, extra, scale, retain_graph)
    if all(gradient is None for row in rows.values() for gradient in row):
        raise UsageError(
            "no loss left a gradient in `parameters`: pass the model that computes the losses, and for "
            "accumulation merge=False in place of set_requires_gradient_sync(False)"
        )
    scale = divisor(scale)
    merged: list[Tensor | None] = [None] * len(tensors)
    if not merge or hooks.kept.batches:
        hooks.kept.add(tensors, rows, scale, values)
    if merge:
        if hooks.kept.batches:
            rows, scale, values = hooks.kept.take(tensors)  # type: ignore[assignment]
        merged = _merge(rows, sharded, hooks, scale, values)
    for tensor, gradient, known in zip(tensors, merged, before, strict=True):
        tensor.grad = add_up([known, None if gradient is None else _as_grad(gradient, tensor)])


@torch.no_grad()
def _merge(
    rows: Mapping[int, Row], sharded: Sharded, hooks: Hooks, scale: Tensor, values: Tensor | None
) -> list[Tensor | None]:
    """The merged shards; parameters that the method has learned get theirs at once."""
    tensors, columns = sharded.tensors, list(zip(*rows.values(), strict=True))
    shared = [i for i, column in enumerate(columns) if sum(g is not None for g in column) > 1]
    double = any(tensors[i].dtype in (torch.float64, torch.complex128) for i in shared)
    dtype = torch.float64 if double else torch.float32
    part = _Shards(rows, dtype, tensors, sharded.processes).take(shared)
    merged, learned = merge_parameters(part, hooks, scale, values)
    for tensor, gradient in zip(hooks.learned, learned, strict=True):
        if gradient is not None:
            tensor.grad = add_up([tensor.grad, _as_grad(gradient, tensor)])
    chosen = dict(zip(shared, merged, strict=True))
    return [chosen[i] if i in chosen else add_up(column) for i, column in enumerate(columns)]


def _as_grad(gradient: Tensor, tensor: Any) -> Tensor:
    """A gradient, or this process's shard of it, as ``tensor.grad``."""
    gradient = gradient.to(tensor.dtype)
    if not _is_shard(tensor) or _is_shard(gradient):
        return gradient
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements
    if gradient.shape == tensor.shape != tensor.to_local().shape:  # whole: that of a learned weight
        whole = DTensor.from_local(gradient, mesh, run_check=False)
        return whole.redistribute(placements=placements)
    return DTensor.from_local(
        gradient, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def _mark(loss: Tensor | None, positions: Mapping[int, int]) -> int:
    """A number that tells which parameters a loss reaches."""
    leaves = [] if loss is None else leaves_below([loss])
    reached = sorted((positions.get(id(leaf), -1), tuple(leaf.shape)) for leaf in leaves)
    return crc32(repr(reached).encode())
