"""What happens when a loss or a gradient is not finite.

``"raise"`` never makes a step wait for the device. The figures stay there and are read in steps that
log, before a validation, before a checkpoint and at the end; the error then names the first step that
went wrong, and its tasks. Until then training continues with useless weights, which are never saved.

``"skip"`` must know before the optimizer's step, so that every step waits for the device once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from mtlkit.errors import NonFiniteError
from mtlkit.training.readings import BatchReading
from mtlkit.weighting import GradientAggregator

_MOST_SKIPS = 50
_STATISTICS = ("running_mean", "running_var")


class NonFinitePolicy:
    """Checks the figures of batches, and stops the run or has a step left out.

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
                    "data, or leave such steps out with on_nonfinite='skip'"
                )
            self._skips += 1
            if self._skips >= _MOST_SKIPS:
                raise NonFiniteError(
                    f"{where}; {self._skips} steps in a row were left out, so training stops"
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

    def __init__(self, model: nn.Module, method: GradientAggregator) -> None:
        self.model, self.method = model, method
        self._kept: list[tuple[Tensor, Tensor]] = []

    def keep(self) -> None:
        """Remember them."""
        own = {id(buffer) for buffer in self.method.buffers()}
        buffers = [b for b in self.model.buffers() if b.is_floating_point() and id(b) not in own]
        self._kept = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        """Put back what was kept, because the step is left out."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)


def gradients_of(method: GradientAggregator, module: nn.Module) -> Any:
    """The method's statistics of the last backward; without a merge, the norm of all gradients."""
    stats = method.stats
    if stats is not None:
        return stats
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
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
