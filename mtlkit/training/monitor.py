"""Statistics of the task gradients, read from ``method.stats`` without an extra backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mtlkit.errors import SpecError, UsageError
from mtlkit.weighting import GradientAggregator

_FIGURES = ("norms", "weights", "update_cosines", "cosines")


class Monitor:
    """Samples ``method.stats`` and averages it between summaries.

    Args:
        method: the method to watch.
        every: number of steps between samples.
    """

    def __init__(self, method: GradientAggregator, every: int = 10) -> None:
        if every < 1:
            raise SpecError(f"a monitor samples every 1 or more steps, not every {every}")
        self.method = method
        self.every = every
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._samples = 0

    def observe(self, step: int) -> None:
        """Sample the last step, if it is due, without waiting for the device."""
        if step % self.every:
            return
        stats = self.method.stats
        if stats is None:
            return
        figures = {name: stats[name] for name in _FIGURES}
        cosines = stats.cosines
        known = ~torch.isnan(cosines)
        figures["conflicts"] = torch.where(known, (cosines < 0).to(cosines.dtype), torch.nan)
        self._samples += 1
        for name, value in figures.items():  # sums stay on the device: nothing is read here
            value = value.detach().to(torch.float32 if value.is_mps else torch.float64)
            finite = torch.isfinite(value)  # a task that is absent or overflowed is left out
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value)
                self._counts[name] = torch.zeros_like(value)
            self._sums[name] += torch.where(finite, value, 0.0)
            self._counts[name] += finite

    @property
    def conflict(self) -> float | None:
        """Share of pairs of tasks with a negative cosine, over the samples; None without any."""
        if self._samples == 0:
            return None
        pairs = [self._sums["conflicts"].triu(1).sum(), self._counts["conflicts"].triu(1).sum()]
        conflicts, count = torch.stack(pairs).tolist()
        return conflicts / count if count else 0.0

    def summary(self) -> dict[str, Any] | None:
        """Means since the last summary, as plain numbers; None where nothing was sampled."""
        if self._samples == 0:
            return None
        means = {name: self._sums[name] / self._counts[name] for name in self._sums}
        tasks = self.method.tasks
        record: dict[str, Any] = {
            "tasks": list(tasks),
            "samples": self._samples,
            "conflict": self.conflict,
            "cosines": means["cosines"].tolist(),
        }
        for name in ("norms", "weights", "update_cosines"):
            record[name] = dict(zip(tasks, means[name].tolist(), strict=True))
        angles = rotation_angles(self.method)
        if angles is not None:
            record["rotation_angles"] = dict(zip(tasks, angles, strict=True))
        self._sums, self._counts, self._samples = {}, {}, 0
        return record


def rotation_angles(method: GradientAggregator) -> list[float] | None:
    """How far each rotation has turned from the identity, in degrees; None without rotations.

    A rotation of m dimensions turns m/2 planes; given is the angle whose cosine is the mean of their
    cosines, ``trace(R) / m``.
    """
    try:
        rotations = method.rotations
    except UsageError:
        return None
    with torch.no_grad():
        means = rotations.diagonal(dim1=-2, dim2=-1).double().mean(dim=-1)
        angles = torch.rad2deg(torch.acos(means.clamp(-1, 1))).reshape(len(method.tasks), -1)
        found: list[float] = angles.mean(dim=1).tolist()
        return found
