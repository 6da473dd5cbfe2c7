"""The history of a run on disk: lines of the kinds ``train``, ``validation`` and ``monitor``.

A comparison writes ``history.jsonl``; the Trainer's ``log.jsonl`` can be read, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from mtlkit.config.files import write_text
from mtlkit.config.logs import json_line

HISTORIES = ("history.jsonl", "log.jsonl")
_STATISTICS = ("norms", "update_cosines", "weights", "rotation_angles")

ByTask: TypeAlias = dict[str, float]
Metrics: TypeAlias = dict[str, dict[str, float]]


@dataclass
class HistoryRow:
    """Losses and metrics at one point of a run, on ``train`` or ``val``.

    >>> HistoryRow(step=100, epoch=1.0, split="val", losses={"digit": 0.3}).losses
    {'digit': 0.3}
    """

    step: int
    epoch: float
    split: str
    losses: ByTask = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)


@dataclass
class MonitorRow:
    """Statistics of the task gradients, averaged over the steps since the last row.

    >>> MonitorRow(step=100, update_cosines={"digit": 0.5, "parity": 0.7}).mean_cosine
    0.6

    Attributes:
        step: optimizer step.
        norms: norms of the task gradients.
        update_cosines: cosine of each task's gradient with the merged gradient.
        weights: weights of the tasks in the merge.
        conflict: fraction of pairs of tasks with a negative cosine.
        rotation_angles: angle of each rotation in degrees; empty without rotations.
        groups: mean cosine of each pair of tasks by group of parameters, such as a layer.
    """

    step: int
    norms: ByTask = field(default_factory=dict)
    update_cosines: ByTask = field(default_factory=dict)
    weights: ByTask = field(default_factory=dict)
    conflict: float = math.nan
    rotation_angles: ByTask = field(default_factory=dict)
    groups: Metrics = field(default_factory=dict)

    @property
    def mean_cosine(self) -> float:
        """Mean of ``update_cosines`` over tasks."""
        known = [value for value in self.update_cosines.values() if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


def write_rows(
    folder: str | os.PathLike[str], history: list[HistoryRow], monitor: list[MonitorRow]
) -> None:
    """Write the rows of a run to its folder, replacing old ones."""
    records = [
        {
            "kind": "train" if row.split == "train" else "validation",
            "step": row.step,
            "epoch": row.epoch,
            "split": row.split,
            "losses": row.losses,
            "tasks": row.metrics,
        }
        for row in history
    ]
    records += [{"kind": "monitor", **asdict(row)} for row in monitor]
    write_text(Path(folder) / HISTORIES[0], "".join(map(json_line, records)))


def read_history(folder: str | os.PathLike[str]) -> tuple[list[HistoryRow], list[MonitorRow]]:
    """Read the rows of a run from ``history.jsonl``, or else from the Trainer's ``log.jsonl``."""
    path = next((Path(folder) / name for name in HISTORIES if (Path(folder) / name).is_file()), None)
    history: list[HistoryRow] = []
    monitor: list[MonitorRow] = []
    for record in () if path is None else read_lines(path):
        kind, step = record.get("kind"), record.get("step")
        if not isinstance(step, int):
            continue
        if kind in ("train", "validation"):
            metrics = metrics_of(record.get("tasks"))
            losses = {task: row["loss"] for task, row in metrics.items() if "loss" in row}
            split = "train" if kind == "train" else str(record.get("split", "val"))
            losses |= by_task(record.get("losses"))
            history.append(HistoryRow(step, number(record.get("epoch")), split, losses, metrics))
        elif kind == "monitor":
            statistics = {name: by_task(record.get(name)) for name in _STATISTICS}
            conflict, groups = number(record.get("conflict")), metrics_of(record.get("groups"))
            monitor.append(MonitorRow(step, conflict=conflict, groups=groups, **statistics))
    return history, monitor


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON lines; a truncated one is skipped."""
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def number(value: Any) -> float:
    """Return a value as a float; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def by_task(value: Any) -> ByTask:
    """Return one number per task; empty if the value is not a mapping."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): number(item) for name, item in value.items()}


def metrics_of(value: Any) -> Metrics:
    """Return numbers by task and metric; empty if the value is not a mapping."""
    if not isinstance(value, Mapping):
        return {}
    return {str(task): by_task(row) for task, row in value.items()}
