"""The output of a run: log file, trackers, gradient statistics and progress bar."""

from __future__ import annotations

import itertools
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.config.logs import LOG_NAME, Log
from mtlkit.errors import SpecError, UsageError
from mtlkit.method.method import Method
from mtlkit.tasks import Task

_GROUP = "cosines of "
_MOST_GROUPED = 10
_SAMPLED = ("norms", "weights", "update_cosines", "cosines")
_TRACKED = ("norms", "weights", "update_cosines", "rotation_angles")
_INTERVAL = 0.5
_MOST_TASKS = 4
_WIDE = 110
"""Terminal width from which the bar is long."""

Shown = Literal["bar", "lines", ""]
Metrics = Mapping[str, Mapping[str, float]]


class RunLog:
    """The log file and Accelerate's trackers of one run; only the main process writes.

    Args:
        output: folder of the run; None writes no file.
        accelerator: accelerator with the trackers.
        start_trackers: whether the trackers belong to this run and must be started.
    """

    def __init__(self, output: Path | None, accelerator: Any, *, start_trackers: bool) -> None:
        self.output = output
        self.accelerator = accelerator
        self.start_trackers = start_trackers
        self._file: Log | None = None

    def open(self, tasks: Sequence[Task], until: int | None, **facts: Any) -> None:
        """Open the file; a resumed run keeps lines up to the step ``until``, a new one keeps none."""
        if self.output is None or not self.accelerator.is_main_process:
            return
        if self.start_trackers and not self.accelerator.trackers:
            own = {"wandb": {"name": self.output.name, "dir": str(self.output)}}
            self.accelerator.init_trackers("mtlkit", init_kwargs=own)
        self._file = Log(self.output / LOG_NAME, until=until)
        if not self._file.has("run"):
            kinds = {task.name: {"kind": task.kind, "metrics": task.higher_is_better} for task in tasks}
            self.write("run", 0, tasks=kinds, **facts)

    def close(self) -> None:
        """Close the file and flush the trackers."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for tracker in self.accelerator.trackers:
            if tracker.name == "tensorboard":
                tracker.tracker.flush()

    def write(self, kind: str, step: int, **fields: Any) -> None:
        """Add a line to the file."""
        if self._file is not None:
            self._file.write(kind, step, **fields)

    def note(self, message: str, step: int) -> None:
        """Warn, and write the warning to the log."""
        if self.accelerator.is_main_process:
            self.write("note", step, message=message)
            warnings.warn(message, UserWarning, stacklevel=3)

    def training(
        self,
        step: int,
        epoch: int,
        losses: Mapping[str, float],
        batches: int,
        optimizer: Any,
        summary: Mapping[str, Any] | None,
    ) -> None:
        """Write the losses since the last call, learning rates and gradient statistics."""
        rates = {
            str(group.get("name", index)): group["lr"]
            for index, group in enumerate(optimizer.param_groups)
        }
        self.write(
            "train", step, epoch=epoch, time=time.time(), losses=losses, batches=batches, rates=rates
        )
        values = {f"loss/{name}": value for name, value in losses.items()}
        if summary is not None:
            self.write("monitor", step, epoch=epoch, **summary)
            values["conflict"] = summary["conflict"]
            for name in _TRACKED:
                values |= {f"{name}/{task}": value for task, value in summary.get(name, {}).items()}
        self._track(values, step)

    def validation(self, step: int, epoch: int, score: float, best: bool, metrics: Metrics) -> None:
        """Write the metrics of a validation."""
        self.write("validation", step, epoch=epoch, score=score, best=best, tasks=metrics)
        values = {f"validation/{t}/{m}": v for t, row in metrics.items() for m, v in row.items()}
        self._track(values, step)

    def _track(self, values: Mapping[str, float], step: int) -> None:
        if self.accelerator.trackers:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self.accelerator.log(finite, step=step)


class Monitor:
    """Samples ``method.stats`` and averages it between summaries, without an extra backward pass.

    For a method with groups of parameters and up to ten tasks, ``groups`` of a summary has the mean
    cosine of every pair of tasks in each group, such as a layer.

    Args:
        method: the method to monitor.
        every: number of steps between samples.

    >>> import torch, mtlkit
    >>> from mtlkit.training import Monitor
    >>> method = mtlkit.create_method("pcgrad", tasks=("a", "b"))
    >>> monitor = Monitor(method, every=1)
    >>> a, b = method(torch.ones(2, 3, requires_grad=True))
    >>> method.total([a.sum(), -b.sum()]).backward()
    >>> monitor.observe(step=1)
    >>> monitor.summary()["conflict"]
    1.0
    """

    def __init__(self, method: Method, every: int = 10) -> None:
        if every < 1:
            raise SpecError(f"every must be at least 1, not {every}")
        self.method = method
        self.every = every
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._samples = 0

    def observe(self, step: int) -> None:
        """Sample the last step, if due, without waiting for the device."""
        if step % self.every:
            return
        stats = self.method.stats
        if stats is None:
            return
        values = {name: stats[name] for name in _SAMPLED}
        cosines = stats.cosines
        known = ~torch.isnan(cosines)
        values["conflicts"] = torch.where(known, (cosines < 0).to(cosines.dtype), torch.nan)
        if len(self.method.tasks) <= _MOST_GROUPED:
            values |= {_GROUP + name: group.cosines for name, group in stats.groups.items()}
        self._samples += 1
        for name, value in values.items():  # sums stay on the device
            value = value.detach().to(torch.float32 if value.is_mps else torch.float64)
            finite = torch.isfinite(value)  # without tasks that are absent or overflowed
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value)
                self._counts[name] = torch.zeros_like(value)
            self._sums[name] += torch.where(finite, value, 0.0)
            self._counts[name] += finite

    @property
    def conflict(self) -> float | None:
        """Fraction of pairs of tasks with a negative cosine since the last summary; None without any."""
        if self._samples == 0:
            return None
        pairs = [self._sums["conflicts"].triu(1).sum(), self._counts["conflicts"].triu(1).sum()]
        conflicts, count = torch.stack(pairs).tolist()
        return conflicts / count if count else 0.0

    def summary(self) -> dict[str, Any] | None:
        """Return means since the last summary, as plain numbers; None without samples."""
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
        groups = {name.removeprefix(_GROUP): means[name] for name in means if name.startswith(_GROUP)}
        if groups:
            pairs = list(itertools.combinations(range(len(tasks)), 2))
            record["groups"] = {
                name: {f"{tasks[i]} and {tasks[j]}": float(cosines[i, j]) for i, j in pairs}
                for name, cosines in groups.items()
            }
        angles = rotation_angles(self.method)
        if angles is not None:
            record["rotation_angles"] = dict(zip(tasks, angles, strict=True))
        self._sums, self._counts, self._samples = {}, {}, 0
        return record


def rotation_angles(method: Method) -> list[float] | None:
    """Return the angle of each rotation in degrees; None without rotations.

    A rotation of m dimensions turns m/2 planes; this is the angle whose cosine is the mean of their
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


class Progress:
    """A bar on a terminal, or a line per epoch: losses, main metrics, conflicts and speed.

    Args:
        shown: ``bar``, ``lines``, or empty for nothing.
        total: total number of steps; None if unknown.
        console: rich console; None for stderr.
    """

    def __init__(self, shown: Shown, total: int | None, console: Any = None) -> None:
        self._bar: Any = None
        self._lines = shown == "lines"
        self._next = math.inf
        self._started_at = 0
        self._begun = time.monotonic()
        self._total = total
        if shown == "bar":
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True) if console is None else console
            bar_width = 20 if console.width >= _WIDE else 10
            bar, remaining = BarColumn(bar_width=bar_width), TimeRemainingColumn(compact=True)
            first, last = ("{task.description}", bar), ("{task.fields[values]}", remaining)
            columns = (*first, MofNCompleteColumn(), *last)
            self._bar = Bar(*columns, console=console, refresh_per_second=4)
            # epoch, bar, step of steps, remaining time, and the spaces between them
            counted = 2 * len(str(total)) + 1
            self._room = console.width - len("epoch 1000") - bar_width - counted - len("00:00:00") - 4

    @staticmethod
    def wanted(shown: bool | None) -> Shown:
        """Return what to show; None means a bar on a terminal and lines elsewhere."""
        if shown is None:
            return "bar" if sys.stderr.isatty() else "lines"
        return "bar" if shown else ""

    def __enter__(self) -> Progress:
        self._begun = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._row = self._bar.add_task("epoch 1", total=self._total, values="")
            self._next = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, step: int) -> None:
        """Set the first step of a resumed run."""
        self._started_at = step
        if self._bar is not None:
            self._bar.update(self._row, completed=step)

    def due(self) -> bool:
        """Return whether it is time to update the bar."""
        return self._bar is not None and time.monotonic() >= self._next

    def show(
        self,
        step: int,
        epoch: int,
        losses: Mapping[str, float],
        conflict: float | None,
        validation: Metrics,
    ) -> None:
        """Show as many values of this step as fit into the bar."""
        self._next = time.monotonic() + _INTERVAL
        pieces = [*_losses(losses), self._rate(step), *_metrics(validation)]
        if conflict is not None:
            pieces.append(f"conflict {conflict:.0%}")
        text, name = _fit(pieces, self._room), f"epoch {epoch + 1}"
        self._bar.update(self._row, completed=step, description=name, values=text)

    def end_epoch(self, step: int, epoch: int, losses: Mapping[str, float], validation: Metrics) -> None:
        """Print the line of a finished epoch, if lines are shown."""
        if self._lines:
            of = "" if self._total is None else f" of {self._total}"
            values = " | ".join([*_losses(losses), *_metrics(validation), self._rate(step)])
            print(f"epoch {epoch}, step {step}{of}: {values}", file=sys.stderr, flush=True)

    def _rate(self, step: int) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return f"{(step - self._started_at) / seconds:.1f} steps/s"


def _losses(losses: Mapping[str, float]) -> list[str]:
    known = [(name, value) for name, value in losses.items() if math.isfinite(value)]
    return [f"{name} {value:.3g}" for name, value in known[:_MOST_TASKS]]


def _metrics(validation: Metrics) -> list[str]:
    """Return the main metrics of the first tasks."""
    pieces = []
    for name, row in list(validation.items())[:_MOST_TASKS]:
        metric = next((key for key in row if key != "loss"), "loss")
        pieces.append(f"{name} {metric} {row[metric]:.3g}")
    return pieces


def _fit(pieces: Sequence[str], room: int) -> str:
    """Join as many of the first pieces as fit."""
    texts = [" | ".join(pieces[:count]) for count in range(len(pieces) + 1)]
    return next(text for text in reversed(texts) if len(text) <= max(room, 0))
