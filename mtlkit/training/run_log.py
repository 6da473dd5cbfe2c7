"""Output of a run: the log file, trackers and warnings."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlkit.config.logs import LOG_NAME, Log
from mtlkit.tasks import Task

_TRACKED = ("norms", "weights", "update_cosines", "rotation_angles")


class RunLog:
    """The log file and Accelerate's trackers of one run; only the main process writes.

    Args:
        output: folder of the run; None writes no file.
        accelerator: whose trackers are used.
        start_trackers: whether the trackers are this run's own and have to be started.
    """

    def __init__(self, output: Path | None, accelerator: Any, *, start_trackers: bool) -> None:
        self.output = output
        self.accelerator = accelerator
        self.start_trackers = start_trackers
        self._file: Log | None = None

    def open(self, tasks: Sequence[Task], until: int | None, **facts: Any) -> None:
        """Open the file.

        Args:
            tasks: of the run.
            until: last step that a resumed run keeps; None starts an empty log.
            facts: for the first line.
        """
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
        """Losses and learning rates since the last time, and the monitor's summary."""
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

    def validation(
        self, step: int, epoch: int, score: float, best: bool, figures: Mapping[str, Mapping[str, float]]
    ) -> None:
        """The figures of a validation."""
        self.write("validation", step, epoch=epoch, score=score, best=best, tasks=figures)
        values = {f"validation/{t}/{m}": v for t, row in figures.items() for m, v in row.items()}
        self._track(values, step)

    def _track(self, values: Mapping[str, float], step: int) -> None:
        if self.accelerator.trackers:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self.accelerator.log(finite, step=step)
