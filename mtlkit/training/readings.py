"""Losses and gradient norms of the training batches, and what happens when they are not finite.

They stay on the device until they are read. ``on_nonfinite="raise"`` never makes a step wait for the
device: it looks in steps that log, before a validation, before a checkpoint and at the end, and its
error names the first step that went wrong, and its tasks. Until then training continues with useless
weights, which are never saved. ``"skip"`` must know before the optimizer's step, so each step waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import NonFiniteError
from mtlkit.method.method import Method
from mtlkit.method.stats import Stats

_MOST_SKIPS = 50
_STATISTICS = ("running_mean", "running_var")


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
    """Collects losses and norms without waiting for the device; :meth:`read` waits for it.

    Args:
        tasks: names of the tasks.
        accelerator: whose processes share every batch.
        policy: what to do about values that are not finite.
    """

    def __init__(self, tasks: Sequence[str], accelerator: Any, policy: NonFinitePolicy) -> None:
        self.tasks = len(tasks)
        self.device = accelerator.device
        self.processes = int(accelerator.num_processes)
        self.policy = policy
        self.losses, self.epoch_losses = LossMeans(tasks), LossMeans(tasks)
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
        """Keep the losses and norms of a batch.

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

    def read(self) -> str | None:
        """Read the batches since the last call, and say what was not finite; None if nothing was.

        This waits for the device; every process must call it at the same step.
        """
        readings = self._collect()
        self.losses.add(readings)
        self.epoch_losses.add(readings)
        return self.policy.check(readings)

    def _collect(self) -> list[BatchReading]:
        records, self._records = self._records, []
        if not records:
            return []
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        zero = torch.zeros((), dtype=dtype, device=self.device)
        cells = [
            zero if value is None else value
            for record in records
            for value in (record.total, *record.losses)
        ]
        rows = len(records)
        # (rows, 1 + K): the total, then the losses
        values = torch.stack(cells).reshape(rows, -1).to(dtype)
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
        """Return the means by task name, without tasks that had no label."""
        triples = zip(self.names, self._sums, self._counts, strict=True)
        return {name: total / count for name, total, count in triples if count}


class NonFinitePolicy:
    """Checks losses and norms of batches, and stops the run or skips a step.

    Args:
        action: ``"raise"`` or ``"skip"``.
        tasks: names of the tasks.
        gradients: whether to look at the gradients too; not where a GradScaler skips such steps.
    """

    def __init__(
        self, action: Literal["raise", "skip"], tasks: Sequence[str], *, gradients: bool
    ) -> None:
        self.action = action
        self.tasks = tasks
        self.gradients = gradients
        self._skips = 0

    @property
    def skips(self) -> bool:
        """Whether the answer is needed before every optimizer step."""
        return self.action == "skip"

    def check(self, readings: Iterable[BatchReading]) -> str | None:
        """Describe what was not finite first; None if everything was finite.

        Raises:
            NonFiniteError: if the policy is to stop, or after many skipped steps in a row.
        """
        readings = list(readings)
        if not readings:
            return None
        for reading in readings:
            reason = self._describe(reading)
            if reason is None:
                continue
            where = f"{reason} at step {reading.step}, batch {reading.batch} of the epoch"
            if self.action == "raise":
                raise NonFiniteError(
                    f"{where}; lower the learning rate, clip the gradient (max_grad_norm), look at the "
                    "data, or skip such steps with on_nonfinite='skip'"
                )
            self._skips += 1
            if self._skips >= _MOST_SKIPS:
                raise NonFiniteError(
                    f"{where}; {self._skips} steps in a row were skipped, so training stops"
                )
            return reason
        self._skips = 0
        return None

    def _describe(self, reading: BatchReading) -> str | None:
        losses = self._names(reading.losses)
        if losses:
            return f"the loss of {losses} is not finite"
        if not math.isfinite(reading.total):
            return "the weighted sum of the losses is not finite, though every loss is"
        if not self.gradients or all(map(math.isfinite, reading.norms)):
            return None
        if len(reading.norms) < len(self.tasks):
            return "the gradient is not finite"
        # the norm of a task without labels is NaN
        norms = [
            norm if count else None for norm, count in zip(reading.norms, reading.counts, strict=True)
        ]
        named = self._names(norms)
        return f"the gradient of {named} is not finite" if named else None

    def _names(self, values: Sequence[float | None]) -> str:
        pairs = zip(self.tasks, values, strict=True)
        return ", ".join(
            repr(name) for name, value in pairs if value is not None and not math.isfinite(value)
        )


class RunningStatistics:
    """Buffers that a forward pass changes, such as those of BatchNorm; a method guards its own."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        self.model, self.method = model, method
        self._kept: list[tuple[Tensor, Tensor]] = []

    def keep(self) -> None:
        """Copy them before a forward pass that may have to leave no trace."""
        own = {id(buffer) for buffer in self.method.buffers()}
        buffers = [buffer for buffer in self.model.buffers() if id(buffer) not in own]
        self._kept = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        """Put back what was kept."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)


def gradients_of(method: Method, parameters: Sequence[Tensor]) -> Any:
    """Return the method's statistics of the last backward; without a merge, the gradient's norm."""
    stats = method.stats
    if stats is not None:
        return stats
    gradients = [p.grad for p in parameters if p.grad is not None]
    return _total_norm(gradients, 2.0) if gradients else None


def check_parameters(module: nn.Module, step: int) -> None:
    """Refuse to save weights that are not finite, which a finite loss and gradient may hide.

    Raises:
        NonFiniteError: naming the parameters.
    """
    learned = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    learned |= {name: b for name, b in module.named_buffers() if name.rpartition(".")[2] in _STATISTICS}
    if not learned or math.isfinite(_total_norm(list(learned.values()), math.inf)):
        return
    wrong = [name for name, p in learned.items() if not math.isfinite(_total_norm([p], math.inf))]
    raise NonFiniteError(
        f"the parameters {', '.join(wrong)} are not finite after step {step}, so no checkpoint is "
        "written; lower the learning rate, clip the gradient (max_grad_norm), or look at the data"
    )


def _total_norm(tensors: Sequence[Tensor], order: float) -> Any:
    norm: Any = nn.utils.get_total_norm(tensors, order)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded by FSDP
