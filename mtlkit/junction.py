"""The junction: one autograd node where the shared features fork into K tasks.

Forward, every task gets its own view of the features. Backward, autograd calls the node once, when all
task gradients have arrived; they are merged into one gradient for the features. So a step costs one
ordinary ``backward()``, and whatever hooks into autograd (DDP, GradScaler, checkpointing, compilers)
sees an ordinary graph.

Besides the K views the node returns an **anchor**, a zero that :meth:`GradientAggregator.total` adds
to the loss. Its gradient is the factor by which the caller scaled the loss (GradScaler, gradient
accumulation), so that a method sees true gradient norms; and it makes the node run on a process that
has no label of any task in this batch, where its peers would otherwise wait for it for ever.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import UsageError
from mtlkit.host import all_finite, cast, readable

if TYPE_CHECKING:
    from mtlkit.weighting.base import GradientAggregator

__all__ = ["Rows", "Step", "collective_group", "flatten_features", "fork"]

# Above this many numbers, K gradients are not copied into one matrix but visited one by one.
_STACK_LIMIT = 2**25
# On a CPU the copy costs more than it saves much earlier, as long as there are few pairs of tasks.
_CPU_STACK_LIMIT = 2**15
_FEW_TASKS = 16
# What is visited one by one is so by pieces that stay in the cache while all pairs are formed.
_DOT_CHUNK = 2**18
_HOST_DOT_CHUNK = 2**16
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
# A product of very wide matrices is twice as fast on a CPU by pieces that fit into its cache, and by
# pieces all its threads take part in it.
_GRAM_CHUNK = 2**14


class Rows:
    """Gradients of P tasks with respect to one list of tensors: a (P, N) matrix kept in pieces."""

    def __init__(self, grads: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
        self.shapes = [piece.shape for piece in grads[0]] if grads else []
        self.dtype = dtype
        self._pieces: list[Tensor | list[Tensor]] = []
        for index in range(len(self.shapes)):
            pieces = [task[index] for task in grads]
            matrix = _stack(pieces, dtype) if _is_stacked(pieces) else _lying_together(pieces, dtype)
            self._pieces.append(pieces if matrix is None else matrix)

    @classmethod
    def of_matrix(
        cls, matrix: Tensor, dtype: torch.dtype, shapes: Sequence[torch.Size] | None = None
    ) -> Rows:
        """Rows that are a (P, N) matrix already; ``shapes`` are those of the tensors side by side."""
        rows = cls([], dtype)
        rows.shapes = [matrix.shape[1:]] if shapes is None else list(shapes)
        rows._pieces = [cast(matrix, dtype)]
        return rows

    def gram(self) -> Tensor:
        """(P, P) inner products, accumulated piece by piece in float32 or better."""
        first, *others = map(self._gram, self._pieces)
        return sum(others, first)

    def weighted(self, weights: Tensor) -> list[Tensor]:
        """``sum_k w_k g_k``, one tensor for each of the list."""
        if len(self._pieces) < len(self.shapes):
            (matrix,) = self._pieces
            assert isinstance(matrix, Tensor)
            return self.split(cast(weights, matrix.dtype) @ matrix)
        merged = []
        for piece, shape in zip(self._pieces, self.shapes, strict=True):
            if isinstance(piece, Tensor):
                flat = cast(weights, piece.dtype) @ piece
                merged.append(flat if len(shape) == 1 else flat.reshape(shape))
            elif readable(piece[0]):
                merged.append(self._weighted(piece, weights.tolist()))
            else:
                total = piece[0].to(self.dtype) * weights[0].to(self.dtype)
                for weight, row in zip(weights[1:], piece[1:], strict=True):
                    total = total.addcmul_(row.to(self.dtype), weight.to(self.dtype))
                merged.append(total)
        return merged

    def matrix(self) -> Tensor:
        """(P, N), copied together."""
        pieces = [p if isinstance(p, Tensor) else _stack(p, self.dtype) for p in self._pieces]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def split(self, vector: Tensor) -> list[Tensor]:
        """(N,) back into the shapes of the list."""
        if len(self.shapes) == 1:
            return [vector.reshape(self.shapes[0])]
        sizes = [shape.numel() for shape in self.shapes]
        pieces = vector.split(sizes)
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def _gram(self, piece: Tensor | list[Tensor]) -> Tensor:
        if isinstance(piece, Tensor):
            if piece.shape[1] < 8 * _GRAM_CHUNK or piece.device.type != "cpu":
                return piece @ piece.T
            count = piece.shape[1] // _GRAM_CHUNK
            parts = piece[:, : count * _GRAM_CHUNK].unflatten(1, (count, _GRAM_CHUNK)).transpose(0, 1)
            rest = piece[:, count * _GRAM_CHUNK :]
            return torch.bmm(parts, parts.mT).sum(dim=0).addmm_(rest, rest.T)
        where = [index for index, row in enumerate(piece) if not _is_nothing(row)]
        pairs = [(i, j) for i in range(len(where)) for j in range(i + 1)]
        rows = _in_memory_order([piece[index] for index in where])
        if readable(piece[0]):
            products = np.zeros((len(piece), len(piece)), _NUMPY[self.dtype])
            for (i, j), product in zip(pairs, _dots(rows, pairs, self.dtype), strict=True):
                products[where[i], where[j]] = products[where[j], where[i]] = product
            return torch.from_numpy(products)
        gram = torch.zeros(len(piece), len(piece), dtype=self.dtype, device=piece[0].device)
        total = gram.new_zeros(len(pairs))
        for parts in zip(*(row.split(_DOT_CHUNK) for row in rows), strict=True):
            given = [part.to(self.dtype) for part in parts]
            total += torch.stack([torch.dot(given[i], given[j]) for i, j in pairs])
        first, second = [where[i] for i, _ in pairs], [where[j] for _, j in pairs]
        gram[first, second] = total
        gram[second, first] = total
        return gram

    def _weighted(self, piece: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The weighted sum on a CPU, in as few passes over the memory as there are."""
        some = [(w, g) for w, g in zip(weights, piece, strict=True) if not _is_nothing(g)]
        (weight, row), *others = some or [(weights[0], piece[0])]
        total: Tensor
        if weight == 1 and others:
            (weight, other), *others = others
            total = torch.add(cast(row, self.dtype), cast(other, self.dtype), alpha=weight)
        else:
            total = cast(row, self.dtype) * weight
        for weight, row in others:
            total.add_(cast(row, self.dtype), alpha=weight)
        return total


def _dots(rows: Sequence[Tensor], pairs: Sequence[tuple[int, int]], dtype: torch.dtype) -> list[float]:
    """Inner products of vectors on the host: NumPy's take half the time of torch's to call."""
    totals = [0.0] * len(pairs)
    numbers = [row.detach().numpy() if row.dtype == dtype else None for row in rows]
    for start in range(0, rows[0].shape[0] if rows else 0, _HOST_DOT_CHUNK):
        piece = slice(start, start + _HOST_DOT_CHUNK)
        # what is of another type is cast by pieces
        given = [
            row[piece].detach().to(dtype).numpy() if array is None else array[piece]
            for row, array in zip(rows, numbers, strict=True)
        ]
        for number, (i, j) in enumerate(pairs):
            totals[number] += float(given[i].dot(given[j]))
    return totals


def _is_stacked(pieces: Sequence[Tensor]) -> bool:
    """Whether gradients are copied into one matrix."""
    numbers = len(pieces) * pieces[0].numel()
    if not readable(pieces[0]) or len(pieces) > _FEW_TASKS:
        return numbers <= _STACK_LIMIT
    return numbers <= min(_STACK_LIMIT, _CPU_STACK_LIMIT)


def _stack(pieces: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack([piece.reshape(-1) for piece in pieces]).to(dtype)


def _lying_together(pieces: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """(P, N) without a copy, if the gradients are one tensor's slices, as those that rotate gives."""
    first, size = pieces[0], pieces[0].numel()
    if torch.compiler.is_compiling() or first.dtype != dtype:
        return None
    start, step = first.data_ptr(), size * first.element_size()
    if any(piece.data_ptr() != start + index * step for index, piece in enumerate(pieces)):
        return None
    memory = first.untyped_storage().data_ptr()
    for piece in pieces:
        same = piece.dtype == dtype and piece.untyped_storage().data_ptr() == memory
        if not (same and piece.is_contiguous()):
            return None
    return first.as_strided((len(pieces), size), (size, 1))


def _is_nothing(piece: Tensor) -> bool:
    """Whether this stands for the gradient of a task that does not read the tensor (see `_fill`)."""
    if not readable(piece) or piece.numel() < 2 or any(piece.stride()):
        return False
    return bool(piece[(0,) * piece.dim()] == 0)


def _in_memory_order(pieces: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as vectors, their numbers in one and the same order: without a copy, if possible.

    Gradients often arrive transposed, all in the same way.
    """
    if all(piece.is_contiguous() for piece in pieces):
        return [piece.view(-1) for piece in pieces]
    layouts = {piece.stride() for piece in pieces if any(piece.stride())}
    if len(layouts) == 1:
        (strides,) = layouts
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        pieces = [piece.permute(order) for piece in pieces]
    return [piece.reshape(-1) for piece in pieces]


@dataclass
class Step:
    """What one backward knows when it merges.

    ``rows`` are as they arrived: multiplied by ``scale`` and, with ``world`` processes, ``world``
    times the gradient of the loss that DDP's averaging minimises. The Gram matrices are free of
    both factors and the same on every process.
    """

    present: tuple[int, ...]
    """Tasks that have a gradient on some process; P of them."""
    complete: bool
    """Whether these are all the tasks."""
    gram: Tensor
    """(P, P) inner products of the gradients to be merged."""
    feature_gram: Tensor
    """(P, P) inner products of the feature gradients; ``gram`` itself unless ``wrt=parameters``."""
    finite: Tensor
    """Whether all gradients are finite; state is only kept when they are."""
    scale: Tensor
    """Factor of the loss, for example that of a GradScaler."""
    local: tuple[int, ...] = ()
    """Tasks that have a gradient on this process."""
    grads: Mapping[int, list[Tensor | None]] = field(default_factory=dict)
    """Their gradients with respect to the features, a list each; None where no task has one."""
    rows: Rows | None = None
    """(P, N) gradients to be merged: of the features, local tasks only, or of the parameters."""
    losses: Tensor | None = None
    """(P,) losses of this step, averaged over the processes; None before the first ``total``."""
    world: int = 1
    rank: int = 0
    group: Any = None
    weights: Tensor | None = None
    """(P,) weights, once they are known."""

    @property
    def over_parameters(self) -> bool:
        """Whether the gradients to be merged are those of the shared parameters."""
        return self.gram is not self.feature_gram

    def pick(self, state: Tensor) -> Tensor:
        """Entries of per-task ``state`` that belong to the present tasks."""
        return state if self.complete else state[list(self.present)]

    def feature_rows(self) -> Rows:
        """(P, N) gradients of this process's tasks with respect to the features."""
        return Rows([_defined(self.grads[k]) for k in self.local], self.gram.dtype)

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> Tensor:
        """Sum (or mean) of ``tensor`` over the processes, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
            if mean:
                tensor /= self.world
        return tensor


def flatten_features(features: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Tensors of a nested list, tuple or dict, and the function that puts others in their place."""
    if isinstance(features, Tensor):
        return [features], lambda leaves: leaves[0]
    if features is None:
        return [], lambda leaves: None
    if isinstance(features, Mapping):
        children = [flatten_features(item) for item in features.values()]
    elif isinstance(features, tuple | list):
        children = [flatten_features(item) for item in features]
    else:
        raise UsageError(
            "features must be a tensor, or a nested list, tuple or dict of tensors, "
            f"not {type(features).__name__}"
        )

    def rebuild(values: Sequence[Tensor]) -> Any:
        items, start = [], 0
        for child, build in children:
            items.append(build(values[start : start + len(child)]))
            start += len(child)
        if isinstance(features, Mapping):
            return dict(zip(features, items, strict=True))
        if hasattr(features, "_fields"):  # a named tuple
            return type(features)(*items)
        return tuple(items) if isinstance(features, tuple) else items

    return [leaf for child, _ in children for leaf in child], rebuild


def fork(method: GradientAggregator, features: Any) -> list[Any]:
    """K views of ``features`` whose gradients ``method`` will merge."""
    leaves, rebuild = flatten_features(features)
    if not leaves:
        raise UsageError("the features hold no tensor; give the backbone's output")
    method._prepare()
    owned = [tensor for part in method.parts for tensor in part.junction_parameters()]
    recording = method.training and torch.is_grad_enabled()
    if not recording or not any(t.requires_grad for t in (*leaves, *owned)):
        method._pending.nothing_to_merge = recording  # a frozen backbone, and no parameters of ours
        return [rebuild(view) for view in method._fork_leaves(leaves)]

    shared, direct = _shared_parameters(method, leaves) if method._wrt_parameters else ([], False)
    collective_group(method)  # made here, where all processes pass, and only looked up in the backward
    layout = _Layout(len(leaves), len(owned), len(shared), direct)
    anchor, *flat = _Junction.apply(method, layout, *leaves, *owned, *shared)
    method._remember_fork(anchor)
    count = len(leaves)
    return [rebuild(flat[k * count : (k + 1) * count]) for k in range(len(method.tasks))]


@dataclass(frozen=True)
class _Layout:
    """How many of the node's inputs are features, owned parameters and shared parameters."""

    features: int
    owned: int
    shared: int
    direct: bool
    """Whether the merged gradient goes to the shared parameters, past the backbone's backward."""


class _Junction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: Any, layout: _Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(tensors[: layout.features])
        ctx.method, ctx.layout = method, layout
        ctx.dtypes = [leaf.dtype for leaf in leaves]
        ctx.set_materialize_grads(False)
        if layout.shared:
            ctx.save_for_backward(*leaves, *tensors[layout.features + layout.owned :])
        anchor = torch.zeros((), dtype=torch.float32, device=leaves[0].device)
        views = [
            leaf.view_as(leaf) if leaf is given else leaf
            for view in method._fork_leaves(leaves)
            for leaf, given in zip(view, leaves, strict=True)
        ]
        ctx.mark_non_differentiable(*(v for v in views if not v.is_floating_point()))
        return anchor, *views

    @staticmethod
    def backward(ctx: Any, anchor: Tensor | None, *flat: Tensor | None) -> Any:
        method, layout = ctx.method, ctx.layout
        saved = ctx.saved_tensors if layout.shared else ()
        step = _measure(
            method,
            _by_task(flat, len(method.tasks)),
            anchor,
            # the same on every process, also on one without any gradient
            torch.float64 if torch.float64 in ctx.dtypes else torch.float32,
            features=saved[: layout.features],
            shared=saved[layout.features :],
        )
        merged = method._merge_step(step, in_features=not layout.direct)
        owned = [gradient for part in method.parts for gradient in part.junction_gradients(step)]
        method._finish(step)
        features: Sequence[Tensor | None] = [None] * layout.features
        parameters: Sequence[Tensor | None] = [None] * layout.shared
        if layout.direct:
            parameters = merged or parameters
        elif merged:
            reached = [g is not None for g in next(iter(step.grads.values()))]
            following = iter(merged)
            features = [
                cast(next(following), dtype) if has_gradient else None
                for has_gradient, dtype in zip(reached, ctx.dtypes, strict=True)
            ]
        return (None, None, *features, *owned, *parameters)


def _by_task(flat: Sequence[Tensor | None], tasks: int) -> dict[int, list[Tensor | None]]:
    """Gradients of the tasks that have any."""
    count = len(flat) // tasks
    by_task = {k: list(flat[k * count : (k + 1) * count]) for k in range(tasks)}
    return {k: grads for k, grads in by_task.items() if any(g is not None for g in grads)}


def _measure(
    method: GradientAggregator,
    arrived: Mapping[int, list[Tensor | None]],
    anchor: Tensor | None,
    dtype: torch.dtype,
    features: Sequence[Tensor],
    shared: Sequence[Tensor],
) -> Step:
    """Everything about this step that does not depend on the method: gradients and Gram matrices."""
    method._check_backward(anchor is not None, tuple(arrived))
    local = tuple(arrived)
    grads = method._pull_back(_fill(arrived))
    reference = next((g for task in grads.values() for g in task if g is not None), anchor)
    assert reference is not None
    device = reference.device
    scale = torch.ones((), dtype=dtype, device=device) if anchor is None else cast(anchor, dtype)
    scaled = not readable(scale) or scale.item() != 1
    if scaled:
        scale = torch.where(scale == 0, 1.0, scale)

    rows = Rows([_defined(grads[k]) for k in local], dtype)
    gram = rows.gram() if local else torch.zeros(0, 0, dtype=dtype, device=device)
    group = method._group
    world = 1 if group is None else dist.get_world_size(group)
    present, gram = _sum_over_processes(gram, local, len(method.tasks), group, world)
    feature_gram = gram / scale.square() if scaled else gram
    if shared:
        scratch = method._pending.scratch
        rows = _parameter_rows(grads, present, features, shared, group, world, dtype, scratch)
        gram = rows.gram()
        gram = gram / scale.square() if scaled else gram
    else:
        gram = feature_gram
    step = Step(
        present=present,
        complete=len(present) == len(method.tasks),
        gram=gram,
        feature_gram=feature_gram,
        finite=all_finite(gram if gram is feature_gram else gram + feature_gram),
        scale=scale,
        local=local,
        grads=grads,
        rows=rows,
        world=world,
        rank=0 if group is None else dist.get_rank(group),
        group=group,
    )
    step.losses = method._losses_of(step)
    return step


def _defined(grads: Iterable[Tensor | None]) -> list[Tensor]:
    return [gradient for gradient in grads if gradient is not None]


def _fill(arrived: Mapping[int, list[Tensor | None]]) -> dict[int, list[Tensor | None]]:
    """Zeros where a tensor of the list has a gradient of another task, but not of this one.

    They take no memory: each is one zero, expanded.
    """
    if all(g is not None for grads in arrived.values() for g in grads):
        return dict(arrived)
    zeros: dict[int, Tensor] = {}
    for grads in arrived.values():
        for index, g in enumerate(grads):
            if g is not None and index not in zeros:
                zeros[index] = g.new_zeros(()).expand_as(g)
    return {
        task: [zeros.get(i) if g is None else g for i, g in enumerate(grads)]
        for task, grads in arrived.items()
    }


def _sum_over_processes(
    gram: Tensor, local: tuple[int, ...], tasks: int, group: Any, world: int
) -> tuple[tuple[int, ...], Tensor]:
    """The tasks present anywhere, and the Gram matrix of the whole batch.

    DDP averages gradients, so a feature's gradient of the common loss is 1/world of the local one.
    """
    if group is None:
        return local, gram
    message = gram.new_zeros(tasks, tasks + 1)
    index = torch.tensor(local, dtype=torch.long, device=gram.device)
    message[index, tasks] = 1
    message[index[:, None], index[None, :]] = gram
    dist.all_reduce(message, group=group)
    present = tuple(range(tasks))
    if len(local) < tasks:
        present = tuple(torch.nonzero(message[:, tasks]).flatten().tolist())
    gram = message[:, :tasks] / world**2
    return present, gram if len(present) == tasks else gram[list(present)][:, list(present)]


def _parameter_rows(
    grads: Mapping[int, list[Tensor | None]],
    present: tuple[int, ...],
    features: Sequence[Tensor],
    shared: Sequence[Tensor],
    group: Any,
    world: int,
    dtype: torch.dtype,
    scratch: dict[str, Any],
) -> Rows:
    """Gradients of every present task with respect to the shared parameters, averaged over ranks.

    Each goes into its row of one matrix at once, so that no more than K + 1 of them exist together.
    """
    sizes = [parameter.numel() for parameter in shared]
    wanted = (len(present), sum(sizes), dtype, shared[0].device)
    matrix = scratch.get("parameter_rows")
    if matrix is None or (*matrix.shape, matrix.dtype, matrix.device) != wanted:
        # kept for the next step: the system takes longer to hand out such memory than we to fill it
        matrix = torch.empty(wanted[:2], dtype=dtype, device=wanted[3])
        scratch["parameter_rows"] = matrix
    for row, task in zip(matrix, present, strict=True):
        if task in grads:
            pairs = [(z, g) for z, g in zip(features, grads[task], strict=True) if g is not None]
            found = torch.autograd.grad(
                [z for z, _ in pairs],
                shared,
                [g.to(z.dtype) for z, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
            for piece, gradient in zip(row.split(sizes), found, strict=True):
                if gradient is None:
                    piece.zero_()
                else:
                    piece.copy_(gradient.reshape(-1))
            del found
        else:
            row.zero_()
        if group is not None:
            dist.all_reduce(row, group=group)
            row /= world
    return Rows.of_matrix(matrix, dtype, [parameter.shape for parameter in shared])


def _shared_parameters(
    method: GradientAggregator, leaves: Iterable[Tensor]
) -> tuple[list[Tensor], bool]:
    """Parameters below the features that the rows are taken of, and whether these are all there are.

    If so, the merged row is their gradient and is handed to them directly: the backbone is walked K
    times, not K + 1 times.
    """
    below = _leaves_below(leaves)
    if method.shared is None:
        chosen: list[Tensor] = [t for t in below if isinstance(t, nn.Parameter)]
        missing = "no parameter lies below the features (is the backbone frozen?)"
    else:
        wanted = {id(p) for p in method.shared}
        chosen = [tensor for tensor in below if id(tensor) in wanted]
        missing = (
            "none of the parameters in `shared` lies below the features; pass the module that "
            "computes them, as it is used in the forward pass"
        )
    if not chosen:
        raise UsageError(f"wrt=parameters: {missing}; or use wrt=features")
    return chosen, len(chosen) == len(below)


def _leaves_below(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaf tensors that require a gradient and that ``tensors`` were computed from."""
    found: dict[int, Tensor] = {}
    stack = []
    for tensor in tensors:
        if tensor.grad_fn is not None:
            stack.append(tensor.grad_fn)
        elif tensor.requires_grad:
            found[id(tensor)] = tensor
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return list(found.values())


# by the default group; nothing else may keep a group alive, since one that is destroyed with the
# interpreter, its threads still running, ends the process with an error
_groups: dict[Any, Any] = {}
atexit.register(_groups.clear)


def collective_group(method: GradientAggregator) -> Any:
    """The process group that the method's reductions use, or None in a single process.

    It is not DDP's own: with labels missing on some ranks, DDP's buckets may become ready in another
    order there, and reductions of one group must be issued in one order.
    """
    if not dist.is_available() or not dist.is_initialized() or not method._sync:
        return None
    if method.process_group is not None:
        return method.process_group
    world = dist.group.WORLD
    if dist.get_world_size(world) == 1:
        return None
    if world not in _groups:
        _groups.clear()  # groups of a process group that has been destroyed
        _groups[world] = dist.new_group()
    return _groups[world]
