"""Gradients of several tasks with respect to one list of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Rows are processed in chunks that stay in the cache, so that stacking them costs no memory traffic.
_CHUNK = 2**16
# Length of a row in one product of a batch of them.
_PIECE = 2**12

Column = Sequence[Tensor | None]
TensorList = list[Tensor | None]
"""Gradients of a list of tensors; None where there is none."""


class Gradients:
    """A (P, N) matrix, one row per task, kept as the tensors that autograd delivered.

    A task that does not reach a tensor has None there, which counts as zero.

    Args:
        rows: one list of gradients per task, by the task's number.
        dtype: type to compute in, whatever the type of the gradients.
        tensors: the tensors of the list, where a merge may ask for them.
    """

    def __init__(
        self, rows: Mapping[int, Column], dtype: torch.dtype, tensors: Sequence[Tensor] = ()
    ) -> None:
        self.tasks = tuple(rows)
        self.dtype = dtype
        self.tensors = tensors
        # by tensor, so that what is merged can be freed: all rows are K times the size of the model
        columns = zip(*rows.values(), strict=True) if rows else ([] for _ in tensors)
        self._columns = [list(column) for column in columns]
        self._forms: list[_Form | None] = []  # of the columns that the matrix is made of
        self._buffer: Tensor | None = None

    @property
    def rows(self) -> dict[int, TensorList]:
        """One list of gradients per task, by the task's number."""
        return {task: [column[k] for column in self._columns] for k, task in enumerate(self.tasks)}

    @property
    def reached(self) -> list[Tensor]:
        """The tensors that the :meth:`matrix` has columns of; empty if they are not known."""
        pairs = zip(self.tensors, self._forms, strict=bool(self.tensors))
        return [tensor for tensor, form in pairs if form is not None]

    def take(self, columns: Sequence[int]) -> Gradients:
        """Move the gradients of some of the tensors, with the tasks that reach any of these."""
        reaching = {
            task: [self._columns[i][k] for i in columns]
            for k, task in enumerate(self.tasks)
            if any(self._columns[i][k] is not None for i in columns)
        }
        for i in columns:
            self._columns[i] = [None] * len(self.tasks)
        taken = Gradients(reaching, self.dtype, [self.tensors[i] for i in columns])
        taken._buffer = self._chunk_buffer()
        return taken

    def gram(self) -> Tensor:
        """(P, P) inner products, accumulated in ``dtype``; of complex numbers their real parts."""
        buffer = self._chunk_buffer()
        terms = [
            _products(chunk) for column in self._columns for chunk in self._matrices(column, buffer)
        ]
        empty = torch.zeros(len(self.tasks), len(self.tasks), dtype=self.dtype)
        return sum(terms[1:], terms[0]) if terms else empty

    def _chunk_buffer(self) -> Tensor | None:
        if self._buffer is None and not torch.compiler.is_compiling():
            self._buffer = torch.empty(len(self.tasks) * _CHUNK, dtype=self.dtype)
        return self._buffer

    def cross_gram(self) -> Tensor:
        """(P + 1, P) products of the even samples' gradients with the odd ones'; last, how many pairs.

        The square of a noisy gradient is too large on average, as it holds the square of the noise.
        Products of gradients from different samples are not. The first axis of a feature's gradient
        is that of the samples, and a contiguous split of an even-sized batch has the same pairs. The
        products are scaled so that without noise they are the Gram matrix.
        """
        count = len(self.tasks)
        example = next((g for column in self._columns for g in column if g is not None), torch.zeros(0))
        result = torch.zeros(count + 1, count, dtype=self.dtype, device=example.device)
        for column in self._columns:
            real = [None if g is None else as_real(g) for g in column]
            first = next((g for g in real if g is not None), None)
            if first is None or first.dim() < 2 or len(first) < 2:
                continue
            pairs = len(first) // 2
            zero = torch.zeros_like(first)
            rows = torch.stack([zero if g is None else g for g in real]).to(self.dtype)
            even, odd = rows[:, 0 : 2 * pairs : 2].flatten(1), rows[:, 1 : 2 * pairs : 2].flatten(1)
            result[:count] += even @ odd.T * (rows.shape[1] / pairs)
            result[count] += pairs
        return result

    def weighted(self, weights: Tensor, *, free: bool = False) -> TensorList:
        """``sum_k w_k g_k`` for every tensor of the list; None where no task reaches it.

        With ``free`` the gradients of each tensor are freed as soon as they are added up.
        """
        factors = weights.to(self.dtype).unbind()
        merged = []
        for column in self._columns:
            merged.append(self._sum(column, factors))
            if free:
                column[:] = [None] * len(column)
        return merged

    def _sum(self, column: Column, factors: Sequence[Tensor]) -> Tensor | None:
        terms = [(w, g) for w, g in zip(factors, column, strict=True) if g is not None]
        if not terms:
            return None
        (weight, first), *others = terms
        total = as_real(first).to(self.dtype) * weight
        for weight, gradient in others:
            total.addcmul_(as_real(gradient).to(self.dtype), weight)
        return torch.view_as_complex(total) if first.is_complex() else total

    def matrix(self, *, free: bool = False) -> Tensor:
        """(P, N), copied together; tensors that no task reaches are left out.

        With ``free`` the gradients of each tensor are freed as soon as they are copied.
        """
        self._forms = [_Form.of(column) for column in self._columns]
        if torch.compiler.is_compiling():
            return torch.cat([m for column in self._columns for m in self._matrices(column)], dim=1)
        device = next(g.device for column in self._columns for g in column if g is not None)
        size = sum(form.size for form in self._forms if form is not None)
        matrix = torch.empty(len(self.tasks), size, dtype=self.dtype, device=device)
        start = 0
        for column in self._columns:
            for chunk in self._matrices(column):  # one after the other: no second copy of all rows
                matrix[:, start : start + chunk.shape[1]] = chunk
                start += chunk.shape[1]
            if free:
                column[:] = [None] * len(column)
        return matrix

    def split(self, vector: Tensor) -> TensorList:
        """A row of the :meth:`matrix`, (N,), back into the shapes of the list."""
        sizes = [form.size for form in self._forms if form is not None]
        pieces = iter(torch.split(vector, sizes))
        return [None if form is None else form.restore(next(pieces)) for form in self._forms]

    def _matrices(self, column: Column, buffer: Tensor | None = None) -> Iterator[Tensor]:
        """The (P, n) matrix of one tensor, in chunks of columns; nothing if no task reaches it.

        Every chunk is written to ``buffer``, if it is given, over the one before.
        """
        real = [None if g is None else as_real(g) for g in column]
        example = next((g for g in real if g is not None), None)
        if example is None:
            return
        if not all(g is None or (g.dtype == self.dtype and g.is_cpu) for g in real):
            buffer = None
        zero = example.new_zeros(()).expand_as(example)  # takes no memory
        flat = [torch.split((zero if g is None else g).reshape(-1), _CHUNK) for g in real]
        for chunk in zip(*flat, strict=True):
            shape = len(chunk), chunk[0].numel()
            out = None if buffer is None else buffer[: shape[0] * shape[1]].view(shape)
            yield torch.stack(chunk, out=out).to(self.dtype)


@dataclass(frozen=True)
class _Form:
    """The shape of a gradient, which outlives it."""

    shape: torch.Size
    is_complex: bool

    @classmethod
    def of(cls, column: Column) -> _Form | None:
        """The form of a tensor's gradients; None if no task reaches it."""
        example = next((g for g in column if g is not None), None)
        return None if example is None else cls(example.shape, example.is_complex())

    @property
    def size(self) -> int:
        """Number of real numbers in it."""
        return self.shape.numel() * (1 + self.is_complex)

    def restore(self, flat: Tensor) -> Tensor:
        """Real numbers as a gradient."""
        if self.is_complex:
            return torch.view_as_complex(flat.reshape(*self.shape, 2))
        return flat.reshape(self.shape)


def _products(matrix: Tensor) -> Tensor:
    """(P, P) inner products of the rows of a (P, n) matrix.

    A product of few long rows runs on one thread. A batch of shorter ones takes less than half the
    time: 10% of a ResNet18's step with ten tasks and ``wrt=parameters`` on two threads.
    """
    whole = matrix.shape[1] // _PIECE * _PIECE
    rest = matrix[:, whole:]
    products = rest @ rest.T
    if whole:
        pieces = matrix[:, :whole].reshape(len(matrix), -1, _PIECE).transpose(0, 1)
        products = products + torch.bmm(pieces, pieces.mT).sum(dim=0)
    return products


def as_real(gradient: Tensor) -> Tensor:
    """A dense real tensor with the same inner products."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense
