"""What a comparison leaves on disk, and how it is read back.

A folder holds::

    comparison.json                    title, configuration, tasks, baseline, reference, versions
    results.jsonl                      one line per finished run
    runs/<label>-seed<k>/history.jsonl  losses, validations and the monitor's rows of a run

Lines are appended and never changed, so a process that is killed loses at most the line it was writing;
of two lines for one run the later counts. A run's history may as well be the Trainer's ``log.jsonl``:
both are lines with a ``kind``, ``train``, ``validation`` or ``monitor``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zlib import crc32

from mtlkit.errors import MtlkitError, unknown_name
from mtlkit.files import write_text
from mtlkit.training.logs import json_line, plain_values

__all__ = [
    "Comparison",
    "HistoryRow",
    "MonitorRow",
    "ResultsError",
    "Run",
    "TaskRecord",
    "append_result",
    "read_history",
    "read_trainer_run",
    "run_folder",
    "write_history",
]

HEADER = "comparison.json"
RESULTS = "results.jsonl"
HISTORIES = ("history.jsonl", "log.jsonl")

ByTask: TypeAlias = dict[str, float]
Metrics: TypeAlias = dict[str, dict[str, float]]
Status: TypeAlias = Literal["done", "failed", "running"]


class ResultsError(MtlkitError, OSError):
    """A folder of results that is missing or cannot be read."""


@dataclass(frozen=True)
class TaskRecord:
    """A task as a report sees it.

    Attributes:
        name: of the task.
        metrics: whether higher is better, by metric; the main one first.
        compared: the metrics that the relative improvement is the mean of; empty means the main one.
    """

    name: str
    metrics: dict[str, bool]
    compared: tuple[str, ...] = ()

    @property
    def main_metric(self) -> str:
        """The first metric, or ``"loss"``."""
        return next(iter(self.metrics), "loss")

    @property
    def higher_is_better(self) -> bool:
        """Direction of the main metric."""
        return self.metrics.get(self.main_metric, False)

    @property
    def directions(self) -> dict[str, bool]:
        """Directions of the compared metrics."""
        names = self.compared or (self.main_metric,)
        return {name: self.metrics.get(name, False) for name in names}


@dataclass
class HistoryRow:
    """Losses and metrics at one point of a run, on ``train`` or ``val``."""

    step: int
    epoch: float
    split: str
    losses: ByTask = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)


@dataclass
class MonitorRow:
    """Statistics of the task gradients around one step.

    Attributes:
        step: of the optimizer.
        norms: of the task gradients.
        update_cosines: cosine of each task's gradient with the merged one.
        weights: of the tasks in the merge.
        conflict: share of pairs of tasks with a negative cosine.
        rotation_angles: how far each rotation has turned, in degrees; empty without rotations.
    """

    step: int
    norms: ByTask = field(default_factory=dict)
    update_cosines: ByTask = field(default_factory=dict)
    weights: ByTask = field(default_factory=dict)
    conflict: float = math.nan
    rotation_angles: ByTask = field(default_factory=dict)

    @property
    def mean_cosine(self) -> float:
        """Mean of ``update_cosines`` over tasks."""
        known = [value for value in self.update_cosines.values() if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


@dataclass
class Run:
    """One method with one seed.

    Attributes:
        label: of the method, as the report shows it.
        seed: of weights, batches and data.
        status: ``done``, ``failed`` or ``running``.
        metrics: on the test set, by task and metric.
        method: config string.
        step_ratio: time of a step as a multiple of the reference's.
        seconds: how long the run took.
        error: why it failed.
        history: rows of losses and metrics.
        monitor: rows about gradients.
    """

    label: str
    seed: int
    status: Status = "done"
    metrics: Metrics = field(default_factory=dict)
    method: str = ""
    step_ratio: float | None = None
    seconds: float | None = None
    error: str = ""
    history: list[HistoryRow] = field(default_factory=list)
    monitor: list[MonitorRow] = field(default_factory=list)

    def metric(self, task: str, name: str) -> float:
        """A test metric; NaN where the run has none, or failed."""
        if self.status == "failed":
            return math.nan
        return self.metrics.get(task, {}).get(name, math.nan)


@dataclass
class Comparison:
    """Runs of several methods on the same tasks.

    Attributes:
        title: for people.
        tasks: in order.
        runs: in any order; methods are shown in order of first appearance.
        config: what was asked for.
        versions: of software and hardware, by name.
        baseline: label of the single-task runs, which improvements are relative to.
        reference: label that the t-test compares with.
        split: what the runs' metrics were measured on.
    """

    title: str
    tasks: list[TaskRecord]
    runs: list[Run] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    baseline: str | None = None
    reference: str | None = None
    split: str = "test"

    @property
    def labels(self) -> list[str]:
        """Methods: those that the configuration names under ``order`` first, then as they appear."""
        order = [label for label in self.config.get("order", ()) if isinstance(label, str)]
        found = list(dict.fromkeys(run.label for run in self.runs))
        return [label for label in order if label in found] + [x for x in found if x not in order]

    def of(self, label: str) -> list[Run]:
        """The runs of one method, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def find(self, label: str, seed: int) -> Run | None:
        """One run, or None."""
        return next((r for r in self.runs if r.label == label and r.seed == seed), None)

    def task(self, name: str) -> TaskRecord:
        """The task of this name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown_name("task", name, (task.name for task in self.tasks))

    def save_header(self, folder: str | os.PathLike[str]) -> None:
        """Write all but the runs."""
        header = {
            "title": self.title,
            "tasks": [asdict(task) for task in self.tasks],
            "config": self.config,
            "versions": self.versions,
            "baseline": self.baseline,
            "reference": self.reference,
            "split": self.split,
        }
        write_text(Path(folder) / HEADER, json.dumps(plain_values(header), indent=2) + "\n")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything into ``folder``, replacing what results it holds."""
        self.save_header(folder)
        (Path(folder) / RESULTS).unlink(missing_ok=True)
        for run in self.runs:
            write_history(folder, run)
            append_result(folder, run)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Read a folder back.

        Raises:
            ResultsError: where there is no comparison, or its header is damaged.
        """
        path = Path(folder)
        try:
            header = json.loads((path / HEADER).read_text(encoding="utf-8"))
            tasks = [
                TaskRecord(task["name"], dict(task["metrics"]), tuple(task.get("compared", ())))
                for task in header["tasks"]
            ]
        except FileNotFoundError:
            raise ResultsError(
                f"{path} holds no comparison (no {HEADER}); give a folder that `mtlkit compare` wrote"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"cannot read {path / HEADER}: {error!r}") from None
        made = cls(
            title=str(header.get("title", path.name)),
            tasks=tasks,
            config=dict(header.get("config") or {}),
            versions=dict(header.get("versions") or {}),
            baseline=header.get("baseline"),
            reference=header.get("reference"),
            split=str(header.get("split", "test")),
        )
        latest: dict[tuple[str, int], Run] = {}
        for record in _lines(path / RESULTS):
            run = _read_run(record)
            if run is not None:
                latest[run.label, run.seed] = run
        for run in latest.values():
            run.history, run.monitor = read_history(path / "runs" / run_folder(run.label, run.seed))
            made.runs.append(run)
        return made


def read_trainer_run(folder: str | os.PathLike[str]) -> Comparison:
    """A single run of the Trainer, from its ``log.jsonl``, as a comparison of one.

    Its metrics are those of the best validation, or of the last where none is marked.

    Raises:
        ResultsError: where there is no log, or it does not say what the tasks are.
    """
    path = Path(folder)
    records = list(_lines(path / HISTORIES[1]))
    header = next((record for record in records if record.get("kind") == "run"), None)
    if header is None or not isinstance(header.get("tasks"), Mapping):
        raise ResultsError(
            f"{path} holds neither a comparison ({HEADER}) nor the log of a run ({HISTORIES[1]}); "
            "give a folder that `mtlkit compare` or `mtlkit train` wrote"
        )
    tasks = [
        TaskRecord(str(name), {str(m): bool(h) for m, h in dict(facts.get("metrics") or {}).items()})
        for name, facts in header["tasks"].items()
    ]
    validations = [record for record in records if record.get("kind") == "validation"]
    chosen = next((r for r in reversed(validations) if r.get("best")), None)
    chosen = chosen or (validations[-1] if validations else {})
    method = str(header.get("method") or "run")
    run = Run(method, 0, metrics=_metrics(chosen.get("tasks")), method=method)
    run.history, run.monitor = read_history(path)
    facts = {k: v for k, v in header.items() if k not in ("kind", "step", "tasks", "method", "time")}
    return Comparison(path.resolve().name, tasks, [run], config=facts, split="validation")


def run_folder(label: str, seed: int) -> str:
    """Name of a run's folder; labels that differ never share one."""
    safe = re.sub(r"[^A-Za-z0-9._+=-]+", "_", label).strip("._") or "run"
    if safe != label or len(safe) > 80:
        # the checksum keeps labels apart that differ in replaced characters only
        safe = f"{safe[:80]}-{crc32(label.encode()):08x}"
    return f"{safe}-seed{seed}"


def append_result(folder: str | os.PathLike[str], run: Run) -> None:
    """Add a finished run to ``results.jsonl``; it is on disk when this returns."""
    record = {
        name: getattr(run, name)
        for name in ("label", "seed", "status", "metrics", "method", "step_ratio", "seconds", "error")
    }
    path = Path(folder) / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    # end a line that a killed process left unfinished, or this record would be lost with it
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json_line(record))
        file.flush()
        os.fsync(file.fileno())


def write_history(folder: str | os.PathLike[str], run: Run) -> None:
    """Write the rows of a run, replacing what was there."""
    path = Path(folder) / "runs" / run_folder(run.label, run.seed) / HISTORIES[0]
    records: list[dict[str, Any]] = []
    for row in run.history:
        kind = "train" if row.split == "train" else "validation"
        record: dict[str, Any] = {"kind": kind, "step": row.step, "epoch": row.epoch}
        if row.split not in ("train", "val"):
            record["split"] = row.split
        if row.losses:
            record["losses"] = row.losses
        if row.metrics:
            record["tasks"] = row.metrics
        records.append(record)
    records += [{"kind": "monitor", **asdict(row)} for row in run.monitor]
    write_text(path, "".join(map(json_line, records)))


def read_history(folder: str | os.PathLike[str]) -> tuple[list[HistoryRow], list[MonitorRow]]:
    """Rows of a run from ``history.jsonl``, or else from the Trainer's ``log.jsonl``."""
    path = next((Path(folder) / name for name in HISTORIES if (Path(folder) / name).is_file()), None)
    history: list[HistoryRow] = []
    monitor: list[MonitorRow] = []
    for record in () if path is None else _lines(path):
        kind, step = record.get("kind"), record.get("step")
        if not isinstance(step, int):
            continue
        epoch = _number(record.get("epoch"))
        if kind == "train":
            losses, metrics = _by_task(record.get("losses")), _metrics(record.get("tasks"))
            history.append(HistoryRow(step, epoch, "train", losses, metrics))
        elif kind == "validation":
            metrics = _metrics(record.get("tasks"))
            losses = {task: row["loss"] for task, row in metrics.items() if "loss" in row}
            losses |= _by_task(record.get("losses"))
            history.append(HistoryRow(step, epoch, str(record.get("split", "val")), losses, metrics))
        elif kind == "monitor":
            monitor.append(
                MonitorRow(
                    step,
                    norms=_by_task(record.get("norms")),
                    update_cosines=_by_task(record.get("update_cosines")),
                    weights=_by_task(record.get("weights")),
                    conflict=_number(record.get("conflict")),
                    rotation_angles=_by_task(record.get("rotation_angles")),
                )
            )
    return history, monitor


def _read_run(record: Mapping[str, Any]) -> Run | None:
    label, seed = record.get("label"), record.get("seed")
    if not isinstance(label, str) or not isinstance(seed, int):
        return None
    status = record.get("status", "done")
    return Run(
        label=label,
        seed=seed,
        status=status if status in ("done", "failed", "running") else "failed",
        metrics=_metrics(record.get("metrics")),
        method=str(record.get("method") or ""),
        step_ratio=_optional(record.get("step_ratio")),
        seconds=_optional(record.get("seconds")),
        error=str(record.get("error") or ""),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a file of JSON lines; one that is cut short is left out."""
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _optional(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _by_task(value: Any) -> ByTask:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): _number(item) for name, item in value.items()}


def _metrics(value: Any) -> Metrics:
    if not isinstance(value, Mapping):
        return {}
    return {str(task): _by_task(row) for task, row in value.items()}
