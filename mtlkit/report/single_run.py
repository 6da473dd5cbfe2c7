"""Read the folder of one ``mtlkit train`` run for a report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mtlkit.report.histories import HISTORIES, metrics_of, read_history, read_lines
from mtlkit.report.results import HEADER, Comparison, ResultsError, Run, TaskRecord, read_json


def read_trainer_run(folder: str | os.PathLike[str]) -> Comparison:
    """Read a single run of the Trainer, from its ``log.jsonl``, as a comparison of one.

    Its metrics are those of the test if there was one, else of the best validation, or of the last where
    none is marked.

    Raises:
        ResultsError: where there is no log, or it does not say what the tasks are.
    """
    path = Path(folder)
    records = list(read_lines(path / HISTORIES[1]))
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
