"""Gradients of several tasks with respect to one list of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Gradients"]

# Rows are processed in chunks that stay in the cache, so that stacking them costs no memory traffic.
_CHUNK = 2**18


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
        self.rows = dict(rows)
        self._columns = [list(column) for column in zip(*rows.values(), strict=True)]

    @property
    def example(self) -> Tensor | None:
        """Some gradient, for its device; None if there is none."""
        return next((g for column in self._columns for g in column if g is not None), None)

    def gram(self) -> Tensor:
        """(P, P) inner products, accumulated in ``dtype``."""
        example = self.example
        assert example is not None
        gram = torch.zeros(len(self.tasks), len(self.tasks), dtype=self.dtype, device=example.device)
        for column in self._columns:
            for matrix in self._matrices(column):
                gram = gram + matrix @ matrix.T
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
                zero = torch.zeros_like(_example(column))
                rows = torch.stack([zero if g is None else g for g in column]).to(self.dtype)
                even, odd = rows[:, 0 : 2 * count : 2].flatten(1), rows[:, 1 : 2 * count : 2].flatten(1)
                products = products + even @ odd.T * (rows.shape[1] / count)
                pairs += count
        return products, pairs

    def weighted(self, weights: Tensor) -> list[Tensor | None]:
        """``sum_k w_k g_k`` for every tensor of the list; None where no task reaches it."""
        return [self._weighted(column, weights.to(self.dtype)) for column in self._columns]

    def matrix(self) -> Tensor:
        """(P, N), copied together; tensors that no task reaches are left out."""
        flat = [torch.cat(list(self._matrices(column)), dim=1) for column in self._reached()]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def split(self, vector: Tensor) -> list[Tensor | None]:
        """(N,) back into the shapes of the list."""
        pieces = iter(torch.split(vector, [_example(column).numel() for column in self._reached()]))
        return [
            None if _is_empty(column) else next(pieces).reshape(_example(column).shape)
            for column in self._columns
        ]

    def _reached(self) -> list[list[Tensor | None]]:
        return [column for column in self._columns if not _is_empty(column)]

    def _matrices(self, column: Sequence[Tensor | None]) -> Iterator[Tensor]:
        """The (P, n) matrix of one tensor, in chunks of columns."""
        if _is_empty(column):
            return
        zero = _example(column).new_zeros(()).expand_as(_example(column))
        flat = [torch.split((zero if g is None else g).reshape(-1), _CHUNK) for g in column]
        for chunk in zip(*flat, strict=True):
            yield torch.stack(chunk).to(self.dtype)

    def _weighted(self, column: Sequence[Tensor | None], weights: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for weight, gradient in zip(weights, column, strict=True):
            if gradient is not None:
                term = gradient.to(self.dtype)
                total = term * weight if total is None else torch.addcmul(total, term, weight)
        return total


def _is_empty(column: Sequence[Tensor | None]) -> bool:
    return all(gradient is None for gradient in column)


def _example(column: Sequence[Tensor | None]) -> Tensor:
    return next(gradient for gradient in column if gradient is not None)
