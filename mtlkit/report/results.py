"""The runs of a comparison, and their files.

A folder contains::

    comparison.json                     title, configuration, tasks, baseline, reference, versions
    results.jsonl                       one line per finished run
    runs/<label>-seed<k>/history.jsonl  losses, validations and gradient statistics of a run
    runs/<label>-seed<k>/result.json    outcome of the training (single-task: a folder per task)

Lines are appended and never changed, so a killed process loses at most the line it was writing; the last
line of a run counts. Runs whose line is lost are read from their ``result.json``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zlib import crc32

from mtlkit.config.extras import import_extra
from mtlkit.config.files import read_json, write_text
from mtlkit.config.logs import json_line, plain_values
from mtlkit.errors import MtlkitError, shorten
from mtlkit.report.histories import (
    HISTORIES,
    HistoryRow,
    Metrics,
    MonitorRow,
    metrics_of,
    number,
    read_history,
    read_lines,
    write_rows,
)

FORMAT = 1
"""Version of the file format; newer folders are refused."""
HEADER = "comparison.json"
RESULTS = "results.jsonl"
FRONT = "front"
"""Kind of the runs that span the front of weighted sums; they have no row in the table."""
SIMPLE = "simple"
"""Kind of the models that are not networks; they have a row in the table, but no test."""
ONE_EACH = "one network per task"


@dataclass(frozen=True)
class PublishedRow:
    """A published Delta m, with its standard deviation if known; ``spec`` is the method here."""

    method: str
    delta_m: float
    spec: str | None = None
    spread: float | None = None
    source: str = ""


@dataclass(frozen=True)
class PublishedRows:
    """The published results on a data set."""

    rows: list[PublishedRow]


@dataclass(frozen=True)
class _Settings:
    """The settings of a comparison that a report reads."""

    order: list[str] = field(default_factory=list)
    primary: str | None = None
    improvement_over: list[str] | None = None
    single_task_row: dict[str, float] | None = None
    published: PublishedRows | None = None


Status: TypeAlias = Literal["done", "failed", "running"]


class ResultsError(MtlkitError, OSError):
    """A folder of results that is missing or cannot be read."""


@dataclass(frozen=True)
class TaskRecord:
    """A task of a comparison.

    Attributes:
        name: name of the task.
        metrics: whether higher is better, by metric; the main metric is first.
        compared: metrics that a gain is averaged over; if empty, the main metric.

    >>> TaskRecord("depth", {"rmse": False, "within_1.25": True}).main_metric
    'rmse'
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
class Run:
    """One method with one seed.

    Attributes:
        label: name of the method in the report.
        seed: seed of weights, batches and data.
        status: ``done``, ``failed`` or ``running``.
        metrics: test metrics by task.
        method: config string.
        step_ratio: time of a step relative to the reference's.
        seconds: time of the run.
        error: reason of a failure.
        steps: optimizer steps, summed over the networks of the run.
        kind: empty for a method, ``front`` for a weighting that only spans the front, ``simple`` for a
            model that is not a network.
        best_last: whether the last validation was the best; None if unknown.
        history: losses and metrics over time.
        monitor: gradient statistics over time.

    >>> Run("sum", 0, metrics={"left": {"accuracy": 0.9}}).metric("left", "accuracy")
    0.9
    """

    label: str
    seed: int
    status: Status = "done"
    metrics: Metrics = field(default_factory=dict)
    method: str = ""
    step_ratio: float | None = None
    seconds: float | None = None
    error: str = ""
    steps: int | None = None
    kind: str = ""
    best_last: bool | None = None
    history: list[HistoryRow] = field(default_factory=list)
    monitor: list[MonitorRow] = field(default_factory=list)

    def metric(self, task: str, name: str) -> float:
        """Return a test metric; NaN if it is missing or the run failed."""
        if self.status == "failed":
            return math.nan
        return self.metrics.get(task, {}).get(name, math.nan)


@dataclass
class Comparison:
    """Runs of several methods on the same tasks.

    Attributes:
        title: heading of the report.
        tasks: tasks, in order.
        runs: runs in any order; methods are listed in the order of their first runs.
        config: settings.
        versions: versions of software and hardware.
        baseline: label of the single-task runs, which improvements are relative to.
        reference: label of the method that the others are tested against.
        split: data of the metrics.
        tuning: ``trials``, ``seconds`` and ``steps`` of the search before the comparison, by label.
        recovered: runs missing from ``results.jsonl`` that were read from their ``result.json``.

    >>> tasks = [TaskRecord("left", {"accuracy": True})]
    >>> made = Comparison("digits", tasks, [Run("sum", 0), Run("pcgrad", 0)], reference="sum")
    >>> made.labels
    ['sum', 'pcgrad']
    """

    title: str
    tasks: list[TaskRecord]
    runs: list[Run] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    baseline: str | None = None
    reference: str | None = None
    split: str = "test"
    tuning: dict[str, dict[str, float]] = field(default_factory=dict)
    recovered: list[Run] = field(default_factory=list, compare=False)

    @property
    def labels(self) -> list[str]:
        """The methods: first those in ``order`` of the settings, then the others."""
        order, found = self.config.get("order", ()), self._of_kind("")
        return [label for label in order if label in found] + [x for x in found if x not in order]

    @property
    def front_labels(self) -> list[str]:
        """The weightings that span the front."""
        return self._of_kind(FRONT)

    @property
    def simple_labels(self) -> list[str]:
        """The models that are not networks."""
        return self._of_kind(SIMPLE)

    def _of_kind(self, kind: str) -> list[str]:
        return list(dict.fromkeys(run.label for run in self.runs if run.kind == kind))

    @property
    def seeds(self) -> list[int]:
        """All seeds of the methods."""
        return sorted({run.seed for run in self.runs if not run.kind})

    def of(self, label: str) -> list[Run]:
        """Return the runs of one method, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def find(self, label: str, seed: int) -> Run | None:
        """Return one run, or None."""
        return next((r for r in self.runs if r.label == label and r.seed == seed), None)

    def save_header(self, folder: str | os.PathLike[str]) -> None:
        """Write everything except the runs."""
        facts = {name: value for name, value in vars(self).items() if name not in ("runs", "recovered")}
        header = {"format": FORMAT, **facts, "tasks": [asdict(task) for task in self.tasks]}
        write_text(Path(folder) / HEADER, json.dumps(plain_values(header), indent=2) + "\n")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything to ``folder``, replacing its results."""
        self.save_header(folder)
        (Path(folder) / RESULTS).unlink(missing_ok=True)
        for run in self.runs:
            write_history(folder, run)
            append_result(folder, run)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Read a folder; nothing is written, also if there are :attr:`recovered` runs.

        Raises:
            ResultsError: if there is no comparison, or its header is damaged or of a newer mtlkit.
        """
        path = Path(folder)
        header = {**read_header(path), "runs": [], "recovered": []}
        made: Comparison = read_as(cls, header, path / HEADER)
        read_as(_Settings, made.config, path / HEADER, "config")
        latest: dict[tuple[str, int], Run] = {}
        for record in read_lines(path / RESULTS):
            run = _read_run(record)
            if run is not None:
                latest[run.label, run.seed] = run
        for run in _finished_runs(path, [task.name for task in made.tasks]):
            known = latest.get((run.label, run.seed))
            if known is None or known.status != "done":
                latest[run.label, run.seed] = run
                made.recovered.append(run)
        ratios = (read_json(path / "timing.json") or {}).get("ratios")
        for run in latest.values():
            if isinstance(ratios, dict):  # the lines may be relative to another reference
                run.step_ratio = _optional(ratios.get(run.label))
            run.history, run.monitor = read_history(path / "runs" / run_folder(run.label, run.seed))
            made.runs.append(run)
        return made


def read_header(path: Path) -> dict[str, Any]:
    """Read ``comparison.json`` in a folder; raise a ResultsError if it is not valid."""
    try:
        header = json.loads((path / HEADER).read_text(encoding="utf-8"))
        if not isinstance(header, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        raise ResultsError(
            f"{path} contains no comparison (no {HEADER}); give an output folder of `mtlkit compare`"
        ) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path / HEADER}: {error!r}") from None
    written = header.get("format", FORMAT)
    if not isinstance(written, int) or written > FORMAT:
        version = dict(header.get("versions") or {}).get("mtlkit", "newer")
        raise ResultsError(
            f"{path} was written by mtlkit {version}, in format {written}; this version reads formats "
            f"up to {FORMAT}. Update mtlkit: pip install -U mtlkit"
        )
    return header


def read_as(kind: Any, value: Any, source: object, *place: str) -> Any:
    """Read plain values as a dataclass or another type; a wrong one is a ResultsError.

    >>> read_as(TaskRecord, {"name": "left", "metrics": {"accuracy": True}}, "comparison.json")
    TaskRecord(name='left', metrics={'accuracy': True}, compared=())
    """
    pydantic = import_extra("pydantic", "reading results")
    try:
        return pydantic.TypeAdapter(kind).validate_python(value)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (*place, *first["loc"])))
        given = "" if first["type"] == "missing" else f", not {shorten(first['input'])}"
        wrong = f"{first['msg'][:1].lower()}{first['msg'][1:]}{given}"
        raise ResultsError(f"cannot read {source}: {where}: {wrong}") from None


def run_folder(label: str, seed: int) -> str:
    """Return the name of a run's folder, unique for every label."""
    safe = re.sub(r"[^A-Za-z0-9._+=-]+", "_", label).strip("._") or "run"
    if safe != label or len(safe) > 80:
        # labels may differ in replaced characters only
        safe = f"{safe[:80]}-{crc32(label.encode()):08x}"
    return f"{safe}-seed{seed}"


def append_result(folder: str | os.PathLike[str], run: Run) -> None:
    """Append a finished run to ``results.jsonl``; it is on disk when this returns."""
    record = {name: value for name, value in vars(run).items() if name not in ("history", "monitor")}
    path = Path(folder) / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    # end a line that a killed process left unfinished, so that this record is not lost with it
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json_line(record))
        file.flush()
        os.fsync(file.fileno())


def write_history(folder: str | os.PathLike[str], run: Run) -> None:
    """Write the history of a run, replacing an old one."""
    write_rows(Path(folder) / "runs" / run_folder(run.label, run.seed), run.history, run.monitor)


def _read_run(record: Mapping[str, Any]) -> Run | None:
    label, seed = record.get("label"), record.get("seed")
    if not isinstance(label, str) or not isinstance(seed, int):
        return None
    status, steps = record.get("status", "done"), record.get("steps")
    run = Run(label, seed, status if status in ("done", "running") else "failed")
    run.metrics, run.best_last = metrics_of(record.get("metrics")), record.get("best_last")
    run.method, run.error, run.kind = (str(record.get(n) or "") for n in ("method", "error", "kind"))
    run.step_ratio, run.seconds = _optional(record.get("step_ratio")), _optional(record.get("seconds"))
    run.steps = steps if isinstance(steps, int) else None
    return run


def _finished_runs(path: Path, tasks: list[str]) -> list[Run]:
    """Read finished runs from ``job.json`` and ``result.json`` of their trainings."""
    parts: dict[tuple[str, int], dict[str | None, tuple[dict[str, Any], dict[str, Any]]]] = {}
    for file in sorted([*path.glob("runs/*/result.json"), *path.glob("runs/*/*/result.json")]):
        result, job = read_json(file), read_json(file.with_name("job.json"))
        if result and job and not result.get("error") and isinstance(job.get("seed"), int):
            parts.setdefault((str(job.get("label")), job["seed"]), {})[job.get("task")] = (job, result)
    found = []
    for (label, seed), trainings in parts.items():
        whole = trainings.get(None)
        chosen = [whole] if whole else [trainings[task] for task in tasks if task in trainings]
        if not whole and len(chosen) < len(tasks):
            continue  # some single-task networks are not trained yet
        run = Run(label, seed, seconds=0.0, steps=0)
        run.method = str((whole[0].get("train") or {}).get("method", "")) if whole else ONE_EACH
        run.kind = str(whole[0].get("kind") or "") if whole else ""
        for _, result in chosen:
            run.metrics |= metrics_of(result.get("metrics"))
            run.seconds = (run.seconds or 0.0) + (_optional(result.get("seconds")) or 0.0)
            run.steps = (run.steps or 0) + int(_optional(result.get("steps")) or 0)
        found.append(run)
    return found


def _optional(value: Any) -> float | None:
    found = number(value)
    return None if math.isnan(found) else found


def read_trainer_run(folder: str | os.PathLike[str]) -> Comparison:
    """Read a run of the Trainer, from its ``log.jsonl``, as a comparison of one run.

    Its metrics are those of the test or, without a test, of the best or else the last validation.

    Raises:
        ResultsError: if there is no log, or it does not list the tasks.
    """
    path = Path(folder)
    records = list(read_lines(path / HISTORIES[1]))
    header = next((record for record in records if record.get("kind") == "run"), None)
    if header is None or not isinstance(header.get("tasks"), Mapping):
        raise ResultsError(
            f"{path} contains neither a comparison ({HEADER}) nor the log of a run ({HISTORIES[1]}); "
            "give an output folder of `mtlkit compare` or `mtlkit train`"
        )
    facts_of = read_as(dict[str, dict[str, Any]], header["tasks"], path / HISTORIES[1], "tasks")
    named = [{**facts, "name": name} for name, facts in facts_of.items()]
    tasks = read_as(list[TaskRecord], named, path / HISTORIES[1], "tasks")
    tested = read_json(path / "test.json")
    validations = [record for record in records if record.get("kind") == "validation"]
    chosen = next((r for r in reversed(validations) if r.get("best")), None)
    chosen = chosen or (validations[-1] if validations else {})
    method = str(header.get("method") or "run")
    metrics = metrics_of(tested if tested else chosen.get("tasks"))
    run = Run(method, 0, metrics=metrics, method=method)
    run.history, run.monitor = read_history(path)
    facts = {k: v for k, v in header.items() if k not in ("kind", "step", "tasks", "method", "time")}
    split = "test" if tested else "validation"
    return Comparison(path.resolve().name, tasks, [run], config=facts, split=split)
