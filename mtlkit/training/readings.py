"""Losses and gradient norms of training batches, and the check that they are finite.

They stay on the device until they are read. With ``on_nonfinite="raise"``, no step waits for the device:
the values are read in steps that log, before validations and checkpoints, and at the end; the error
names the first step that failed, and its tasks. Until then training continues with useless weights,
which are never saved. With ``"skip"``, each step waits for the device before the optimizer's step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlkit.errors import NonFiniteError
from mtlkit.method.method import Method
from mtlkit.method.stats import Stats

_MOST_SKIPS = 50
_WITHOUT_LABELS = (
    "if the batch has no label of this task, so that its loss is a mean over nothing, mark missing "
    "targets (None, negative classes, NaN), or name the labels: Task(..., labels=lambda target: "
    "target != 255); such batches are then left out; else "
)
_STATISTICS = ("running_mean", "running_var")


class BatchReading(NamedTuple):
    """Losses and gradients of one batch, on the device."""

    step: int
    """Optimizer step that the batch belongs to, from 1."""
    batch: int
    """Number of the batch in the epoch, from 1."""
    total: Tensor
    """Argument of the backward pass on this process."""
    losses: Sequence[Tensor | None]
    """Loss of each task over the labels of this process; None without labels."""
    own_counts: Sequence[float]
    """Numbers of labels on this process."""
    counts: Sequence[float]
    """Numbers of labels on all processes."""
    gradients: Stats | Tensor | None
    """Statistics of the method, or the norm of the gradient; None if it is not checked."""


class Readings:
    """Collects losses and norms without waiting for the device; only :meth:`read` waits."""

    def __init__(
        self, tasks: Sequence[str], accelerator: Any, on_nonfinite: Literal["raise", "skip"]
    ) -> None:
        self.tasks = tasks
        self.device = accelerator.device
        self.processes = int(accelerator.num_processes)
        self.skips = on_nonfinite == "skip"
        self.checks_gradients = accelerator.scaler is None  # a scaler skips such steps
        self.losses, self.epoch_losses = LossMeans(tasks), LossMeans(tasks)
        self._unread: list[BatchReading] = []
        self._skips = 0

    def __len__(self) -> int:
        return len(self._unread)

    def add(self, reading: BatchReading) -> None:
        """Store the losses and norms of a batch."""
        self._unread.append(reading)

    def read(self) -> str | None:
        """Read the batches since the last call, and describe what is not finite; None if all is.

        This waits for the device; every process must call it at the same step.

        Raises:
            NonFiniteError: for a value that is not finite, unless such steps are skipped, or after many
                skipped steps in a row.
        """
        unread, self._unread = self._unread, []
        if not unread:
            return None
        reason = None
        for reading, (total, *values) in zip(unread, self._to_host(unread), strict=True):
            sums, norms = values[: len(self.tasks)], values[len(self.tasks) :]
            pairs = zip(sums, reading.counts, strict=True)
            losses = [total / count if count else None for total, count in pairs]
            self.losses.add(losses, reading.counts)
            self.epoch_losses.add(losses, reading.counts)
            if reason is None:
                reason = self._describe(reading, total, losses, norms)
                if reason is not None:
                    nan = [loss is not None and math.isnan(loss) for loss in losses]
                    self._react(reason, reading, _WITHOUT_LABELS if 0 < sum(nan) < len(nan) else "")
        if reason is None:
            self._skips = 0
        return reason

    def _to_host(self, readings: Sequence[BatchReading]) -> list[list[float]]:
        """Return the total, K sums of losses and K norms of every batch, summed over processes."""
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        zero = torch.zeros((), dtype=dtype, device=self.device)
        cells = [zero if x is None else x for r in readings for x in (r.total, *r.losses)]
        factors = [[1.0, *reading.own_counts] for reading in readings]
        values = torch.stack(cells).reshape(len(readings), -1).to(dtype)
        values = values * torch.tensor(factors, dtype=dtype, device=self.device)
        norms = torch.stack([_norms(r.gradients, zero).expand(len(self.tasks)) for r in readings])
        table = torch.cat([values, norms], dim=1)
        if self.processes > 1:
            dist.all_reduce(table)
        rows: list[list[float]] = table.tolist()
        return rows

    def _react(self, reason: str, reading: BatchReading, advice: str) -> None:
        where = f"{reason} at step {reading.step}, batch {reading.batch} of the epoch"
        if not self.skips:
            raise NonFiniteError(
                f"{where}; {advice}lower the learning rate, clip the gradient (max_grad_norm), look at "
                "the data, or skip such steps with on_nonfinite='skip'"
            )
        self._skips += 1
        if self._skips >= _MOST_SKIPS:
            raise NonFiniteError(
                f"{where}; {self._skips} steps in a row were skipped, so training stops"
            )

    def _describe(
        self, reading: BatchReading, total: float, losses: list[float | None], norms: list[float]
    ) -> str | None:
        """Describe what is not finite in a batch."""
        names = self._not_finite(losses)
        if names:
            return f"the loss of {names} is not finite"
        if not math.isfinite(total):
            return "the weighted sum of the losses is not finite, though every loss is"
        if not self.checks_gradients or all(map(math.isfinite, norms)):
            return None
        if isinstance(reading.gradients, Tensor):
            return "the gradient is not finite"
        # the norm of a task without labels is NaN
        pairs = zip(norms, reading.counts, strict=True)
        names = self._not_finite([norm if count else None for norm, count in pairs])
        return f"the gradient of {names} is not finite" if names else None

    def _not_finite(self, values: Sequence[float | None]) -> str:
        pairs = zip(self.tasks, values, strict=True)
        return ", ".join(repr(name) for name, x in pairs if x is not None and not math.isfinite(x))


def _norms(gradients: Stats | Tensor | None, zero: Tensor) -> Tensor:
    if gradients is None:
        return zero
    return (gradients if isinstance(gradients, Tensor) else gradients.norms).to(zero)


class LossMeans:
    """Mean loss of every task over the labels since the last reset."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.batches = 0
        self._sums = [0.0] * len(self.names)
        self._counts = [0.0] * len(self.names)

    def add(self, losses: Sequence[float | None], counts: Sequence[float]) -> None:
        """Include a batch."""
        self.batches += 1
        for index, (loss, count) in enumerate(zip(losses, counts, strict=True)):
            if loss is not None and math.isfinite(loss):  # else the run stops or skips the step
                self._sums[index] += loss * count
                self._counts[index] += count

    def means(self) -> dict[str, float]:
        """Return the means by task name, without tasks that had no label."""
        triples = zip(self.names, self._sums, self._counts, strict=True)
        return {name: total / count for name, total, count in triples if count}


class RunningStatistics:
    """Saves and restores buffers that a forward pass changes, such as BatchNorm's."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        self.model, self.method = model, method
        self._kept: list[tuple[Tensor, Tensor]] = []

    def keep(self) -> None:
        """Copy the buffers of the model, except the method's own."""
        own = {id(buffer) for buffer in self.method.buffers()}
        buffers = [buffer for buffer in self.model.buffers() if id(buffer) not in own]
        self._kept = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        """Restore the copies."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)


def gradients_of(method: Method, parameters: Sequence[Tensor]) -> Any:
    """Return the method's statistics of the last backward pass; without any, the gradient's norm."""
    stats = method.stats
    if stats is not None:
        return stats
    gradients = [p.grad for p in parameters if p.grad is not None]
    return _total_norm(gradients, 2.0) if gradients else None


def check_parameters(module: nn.Module, step: int) -> None:
    """Raise a NonFiniteError if parameters are not finite, which a finite loss may hide."""
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
