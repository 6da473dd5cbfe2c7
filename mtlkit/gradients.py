"""Gradients of several tasks with respect to one list of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Gradients", "MatrixGradients"]

# Rows are processed in chunks that stay in the cache, so that stacking them costs no memory traffic.
_CHUNK = 2**18

Column = Sequence[Tensor | None]


class Gradients:
    """A (P, N) matrix, one row per task, kept as the tensors that autograd delivered.

    A task that does not reach a tensor has None there, which counts as zero.

    Args:
        rows: one list of gradients per task, by the task's number.
        dtype: type to compute in, whatever the type of the gradients.
    """

    def __init__(self, rows: Mapping[int, Sequence[Tensor | None]], dtype: torch.dtype) -> None:
        self.tasks = tuple(rows)
        self.dtype = dtype
        self.rows = rows
        self._columns: list[Column] = list(zip(*rows.values(), strict=True))

    @property
    def example(self) -> Tensor | None:
        """Some gradient, for its device; None if there is none."""
        return next((g for column in self._columns for g in column if g is not None), None)

    @property
    def size(self) -> int:
        """N, without the tensors that no task reaches."""
        return sum(_example(column).numel() for column in self._reached())

    def gram(self) -> Tensor:
        """(P, P) inner products, accumulated in ``dtype``."""
        products = (m @ m.T for column in self._reached() for m in self._matrices(column))
        gram = next(products)
        for product in products:
            gram = gram + product
        return gram

    def cross_gram(self) -> tuple[Tensor, int]:
        """(P, P) products of the even samples' gradients with the odd ones', and how many such pairs.

        The square of a noisy gradient is too large on average, as it holds the square of the noise.
        Products of gradients from different samples are not. The first axis of a feature's gradient
        is that of the samples, and a contiguous split of an even-sized batch has the same pairs. The
        products are scaled so that without noise they are the Gram matrix.
        """
        example = self.example
        assert example is not None
        products = torch.zeros(len(self.tasks), len(self.tasks), dtype=self.dtype, device=example.device)
        pairs = 0
        for column in self._reached():
            count = len(_example(column)) // 2 if _example(column).dim() > 1 else 0
            if count:
                rows = torch.stack(_filled(column)).to(self.dtype)
                even, odd = rows[:, 0 : 2 * count : 2].flatten(1), rows[:, 1 : 2 * count : 2].flatten(1)
                products = products + even @ odd.T * (rows.shape[1] / count)
                pairs += count
        return products, pairs

    def weighted(self, weights: Tensor) -> list[Tensor | None]:
        """``sum_k w_k g_k`` for every tensor of the list; None where no task reaches it."""
        return [self._weighted(column, weights.to(self.dtype)) for column in self._columns]

    def matrix(self) -> Tensor:
        """(P, N), copied together; tensors that no task reaches are left out."""
        return torch.cat([m for column in self._reached() for m in self._matrices(column)], dim=1)

    def split(self, vector: Tensor) -> list[Tensor | None]:
        """(N,) back into the shapes of the list."""
        pieces = iter(torch.split(vector, [_example(column).numel() for column in self._reached()]))
        return [
            None if _is_empty(column) else next(pieces).reshape(_example(column).shape)
            for column in self._columns
        ]

    def _reached(self) -> list[Column]:
        return [column for column in self._columns if not _is_empty(column)]

    def _matrices(self, column: Column) -> Iterator[Tensor]:
        """The (P, n) matrix of one tensor, in chunks of columns."""
        flat = [torch.split(gradient.reshape(-1), _CHUNK) for gradient in _filled(column)]
        for chunk in zip(*flat, strict=True):
            yield torch.stack(chunk).to(self.dtype)

    def _weighted(self, column: Column, weights: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for weight, gradient in zip(weights, column, strict=True):
            if gradient is not None:
                term = gradient.to(self.dtype)
                total = term * weight if total is None else torch.addcmul(total, term, weight)
        return total


class MatrixGradients(Gradients):
    """The same for rows that are a matrix already, as in ``combine``."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        super().__init__({}, dtype)
        self.tasks = tuple(range(len(matrix)))
        self._matrix = matrix.to(dtype)

    @property
    def example(self) -> Tensor:
        """The first row."""
        return self._matrix[0]

    @property
    def size(self) -> int:
        """N."""
        return self._matrix.shape[1]

    def gram(self) -> Tensor:
        """(P, P) inner products."""
        return self._matrix @ self._matrix.T

    def cross_gram(self) -> tuple[Tensor, int]:
        """No pairs: there is no axis of samples."""
        return self.gram(), 0

    def weighted(self, weights: Tensor) -> list[Tensor | None]:
        """``sum_k w_k g_k``."""
        return [weights.to(self.dtype) @ self._matrix]

    def matrix(self) -> Tensor:
        """(P, N)."""
        return self._matrix

    def split(self, vector: Tensor) -> list[Tensor | None]:
        """The vector itself."""
        return [vector]


def _is_empty(column: Column) -> bool:
    return all(gradient is None for gradient in column)


def _example(column: Column) -> Tensor:
    return next(gradient for gradient in column if gradient is not None)


def _filled(column: Column) -> list[Tensor]:
    """The gradients, with zeros that take no memory in place of None."""
    zero = _example(column).new_zeros(()).expand_as(_example(column))
    return [zero if gradient is None else gradient for gradient in column]
