"""Losses and gradient norms of the training batches, kept on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from mtlkit.weighting import Stats


@dataclass(frozen=True)
class BatchReading:
    """Losses and gradient norms of one batch, on the host.

    Attributes:
        step: optimizer step that the batch belongs to, from 1.
        batch: number of the batch in its epoch, from 1.
        total: what backward was called on, summed over the processes.
        losses: of each task over the labels of all processes; None for a task without labels.
        counts: numbers of these labels.
        norms: of each task's gradient; or one norm, that of the whole gradient; or none.
    """

    step: int
    batch: int
    total: float
    losses: list[float | None]
    counts: Sequence[float]
    norms: list[float]


class _Record(NamedTuple):
    step: int
    batch: int
    total: Tensor
    losses: Sequence[Tensor | None]
    own_counts: Sequence[float]
    counts: Sequence[float]
    gradients: Stats | Tensor | None


class Readings:
    """Collects the batches' figures without waiting for the device; :meth:`read` waits for it.

    Args:
        tasks: number of tasks.
        accelerator: whose processes share every batch.
    """

    def __init__(self, tasks: int, accelerator: Any) -> None:
        self.tasks = tasks
        self.device = accelerator.device
        self.processes = int(accelerator.num_processes)
        self._records: list[_Record] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self,
        step: int,
        batch: int,
        total: Tensor,
        losses: Sequence[Tensor | None],
        own_counts: Sequence[float],
        counts: Sequence[float],
        gradients: Stats | Tensor | None,
    ) -> None:
        """Keep the figures of a batch.

        Args:
            step: see :class:`BatchReading`, as for ``batch`` and ``total``.
            batch: its number.
            total: of this process.
            losses: of each task, over the labels of this process.
            own_counts: numbers of labels on this process.
            counts: numbers of labels on all processes.
            gradients: the method's statistics, or the norm of the whole gradient.
        """
        record = _Record(step, batch, total.detach(), losses, own_counts, counts, gradients)
        self._records.append(record)

    def read(self) -> list[BatchReading]:
        """The batches since the last call; every process must call this at the same step."""
        records, self._records = self._records, []
        if not records:
            return []
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        zero = torch.zeros((), dtype=dtype, device=self.device)
        cells = [
            zero if value is None else value.to(dtype)
            for record in records
            for value in (record.total, *record.losses)
        ]
        rows = len(records)
        values = torch.stack(cells).reshape(rows, -1)  # (rows, 1 + K): the total, then the losses
        factors = [[1.0, *record.own_counts] for record in records]
        values = values * torch.tensor(factors, dtype=dtype, device=self.device)
        norms = torch.stack([self._norms(record, zero) for record in records])  # (rows, K)
        table = torch.cat([values, norms], dim=1)
        if self.processes > 1:
            dist.all_reduce(table)
        return [self._reading(*pair) for pair in zip(records, table.tolist(), strict=True)]

    def _norms(self, record: _Record, zero: Tensor) -> Tensor:
        gradients = record.gradients
        if gradients is None:
            return zero.expand(self.tasks)
        norms = gradients if isinstance(gradients, Tensor) else gradients.norms
        return norms.to(zero).expand(self.tasks)

    def _reading(self, record: _Record, row: Sequence[float]) -> BatchReading:
        sums, norms = row[1 : 1 + self.tasks], list(row[1 + self.tasks :])
        losses = [
            total / count if count else None for total, count in zip(sums, record.counts, strict=True)
        ]
        if record.gradients is None:
            norms = []
        elif isinstance(record.gradients, Tensor):
            norms = norms[:1]
        return BatchReading(record.step, record.batch, row[0], losses, record.counts, norms)


class LossMeans:
    """Mean loss of every task over the labels since the last line of the log."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.batches = 0
        self._sums = [0.0] * len(self.names)
        self._counts = [0.0] * len(self.names)

    def add(self, readings: Iterable[BatchReading]) -> None:
        """Include these batches."""
        for reading in readings:
            self.batches += 1
            for index, (loss, count) in enumerate(zip(reading.losses, reading.counts, strict=True)):
                if loss is not None and math.isfinite(loss):  # others stop the run, or are skipped
                    self._sums[index] += loss * count
                    self._counts[index] += count

    def means(self) -> dict[str, float]:
        """By task name; a task without any label is left out."""
        triples = zip(self.names, self._sums, self._counts, strict=True)
        return {name: total / count for name, total, count in triples if count}
