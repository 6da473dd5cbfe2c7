"""Methods times seeds on one data set, with the paper's statistics: what ``mtlkit compare`` does.

For every seed all methods start from the same weights and see the same batches; the checkpoint with the
lowest sum of validation losses is tested. A folder of a comparison can be completed at any time: what is
finished is read, what was begun goes on from its last checkpoint.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from mtlkit._version import __version__
from mtlkit.config.files import write_text
from mtlkit.config.launching import refuse_launcher
from mtlkit.config.logs import plain_values
from mtlkit.errors import ConfigError, MtlkitError, UsageError, unknown_name
from mtlkit.experiments.compare_config import CONFIG, CompareConfig
from mtlkit.experiments.entries import SINGLE_TASK
from mtlkit.experiments.jobs import FREE, Job, Outcome, forget_data, read_outcome, write_json
from mtlkit.experiments.launchers import choose_launcher, cores, number_of_jobs
from mtlkit.experiments.live_table import LiveTable
from mtlkit.experiments.preflight import check_first_step
from mtlkit.experiments.timing import time_steps
from mtlkit.experiments.weightings import front_entries
from mtlkit.report.endpoint import Endpoint
from mtlkit.report.histories import HistoryRow, read_history
from mtlkit.report.report import write_report
from mtlkit.report.results import (
    ONE_EACH,
    Comparison,
    Run,
    TaskRecord,
    append_result,
    read_header,
    run_folder,
    write_history,
)
from mtlkit.report.tables import build_table, table_files
from mtlkit.tasks import Task
from mtlkit.training.config import TrainingSettings

TIMING = "timing.json"


class Stopped(KeyboardInterrupt):
    """A comparison was interrupted. Finished runs are on disk, and the same call resumes it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; what is done is kept in {folder}")
        self.folder = folder


@dataclass
class _Plan:
    jobs: list[Job]
    tasks: list[str]

    def parts(self, label: str, seed: int) -> list[Job]:
        return [job for job in self.jobs if job.label == label and job.seed == seed]


def compare(
    config: CompareConfig, output: str | os.PathLike[str], *, progress: bool | None = None
) -> Comparison:
    """Run what is not yet done of a comparison, then write tables and the report.

    Args:
        config: what to compare.
        output: folder of the comparison; one that is half done is completed.
        progress: False shows nothing; None a live table on a terminal, and lines elsewhere.

    Raises:
        ConfigError: for settings that do not fit the data, or another comparison in ``output``.
        Stopped: after Ctrl-C or SIGTERM.
        LaunchError: under torchrun or ``accelerate launch``.
    """
    refuse_launcher("mtlkit compare")
    folder = Path(output)
    tasks = _task_records(config)
    threads = _threads(folder, config)
    plan = _Plan(
        plan_jobs(config, folder, [task.name for task in tasks], threads), [t.name for t in tasks]
    )
    finished = [job for job in plan.jobs if read_outcome(job) is not None]  # also checks settings
    waiting = [job for job in plan.jobs if job not in finished]
    check_first_step(waiting, elsewhere=config.launcher == "submitit")
    _write_header(config, folder, tasks, threads)
    comparison = Comparison.load(folder)
    for run in comparison.recovered:
        append_result(folder, run)
    planned: dict[str, int] = {}
    for job in plan.jobs:
        planned[job.label] = planned.get(job.label, 0) + 1
    table = LiveTable(comparison, planned, progress)
    try:
        with table:
            ratios = _timing(config, folder, plan, table)
            for job in finished:
                table.found(job)
            for label, seed in dict.fromkeys((job.label, job.seed) for job in finished):
                _record(comparison, folder, plan, label, seed, ratios)
            if waiting:

                def ended(job: Job, outcome: Outcome) -> None:
                    table.ended(job, outcome)
                    failure = (job, outcome.error) if outcome.error else None
                    _record(comparison, folder, plan, job.label, job.seed, ratios, failure)

                number = number_of_jobs(config.jobs, config.device)
                launcher = choose_launcher(
                    config.launcher, folder, number, len(waiting), config.launcher_options
                )
                launcher.run(waiting, table.started, ended)
    except KeyboardInterrupt:
        if any(run.status == "done" for run in comparison.runs):
            write_tables(Comparison.load(folder), folder)
        raise Stopped(folder) from None
    _check_equal_starts(plan)
    made = Comparison.load(folder)
    write_tables(made, folder)
    return made


def plan_jobs(config: CompareConfig, folder: Path, tasks: Sequence[str], threads: int = 1) -> list[Job]:
    """All trainings of a comparison, seed by seed."""
    jobs = []
    common: dict[str, Any] = {
        "threads": threads,
        "device": config.device,
        "keep_weights": config.keep_weights,
    }
    for seed in config.seeds:
        if config.single_task:
            for index, task in enumerate(tasks):
                path = folder / "runs" / run_folder(SINGLE_TASK, seed) / f"task{index}"
                train = {**config.train, "method": "sum"}
                jobs.append(Job(str(path), SINGLE_TASK, seed, train, task, **common))
        for entry in (*config.entries, *front_entries(config, tasks)):
            path = folder / "runs" / run_folder(entry.label, seed)
            train = {**config.train, "method": entry.method, **entry.settings}
            capacity, kind = entry.extra_capacity, entry.kind
            jobs.append(Job(str(path), entry.label, seed, train, None, capacity, kind=kind, **common))
    return jobs


def write_tables(comparison: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write ``table.md``, ``table.tex``, ``table.csv`` and ``report.html``; the last one's path."""
    path = Path(folder)
    for name, text in table_files(build_table(comparison)).items():
        write_text(path / name, text)
    return write_report(comparison, path / "report.html")


def _task_records(config: CompareConfig) -> list[TaskRecord]:
    from mtlkit.data import load_dataset

    forget_data()
    train = config.train
    dataset = load_dataset(train["data"], data_dir=train["data_dir"], seed=config.seeds[0])
    tasks = [Task.of(task) for task in dataset.tasks]
    names = [task.name for task in tasks]
    for name in config.improvement_over or ():
        if name not in names:
            raise unknown_name("task in improvement_over", name, names)
    records = [TaskRecord(task.name, dict(task.higher_is_better), task.compared) for task in tasks]
    Endpoint.parse(config.primary, records, config.improvement_over)
    return records


def _threads(folder: Path, config: CompareConfig) -> int:
    """Threads per run, as in the comparison's first call: they change the order of sums."""
    try:
        header = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
        return int(header["config"]["threads"])
    except (OSError, ValueError, KeyError, TypeError):
        return max(1, cores() // number_of_jobs(config.jobs, config.device))


def _write_header(config: CompareConfig, folder: Path, tasks: list[TaskRecord], threads: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "comparison.json"
    old: dict[str, Any] = {}
    if path.is_file():
        old = read_header(folder)
        if [task["name"] for task in old.get("tasks", ())] != [task.name for task in tasks]:
            raise ConfigError(
                f"{folder} holds a comparison of other tasks; choose another output folder"
            )
    before = old.get("config") or {}
    labels = ([SINGLE_TASK] if config.single_task else []) + [entry.label for entry in config.entries]
    earlier = [label for label in before.get("order", ()) if label not in labels]
    methods = {k: v for k, v in before.get("methods", {}).items() if k in earlier}
    described = {
        **{key: value for key, value in config.train.items() if value is not None},
        "normalize": config.normalize,
        "methods": {entry.label: _described(entry) for entry in config.entries} | methods,
        "seeds": list(config.seeds),
        "threads": threads,
        "order": labels + earlier,
    }
    if config.improvement_over is not None:
        described["improvement_over"] = list(config.improvement_over)
    if config.primary is not None:
        described["primary"] = config.primary
    if config.single_task_row is not None:
        described["single_task_row"] = dict(config.single_task_row)
    _check_settings(folder, before, plain_values(described))
    Comparison(
        title=config.title or f"{config.data}: {len(config.entries)} methods",
        tasks=tasks,
        config=described,
        versions=old.get("versions") or _versions(threads),
        baseline=SINGLE_TASK if config.single_task or SINGLE_TASK in earlier else None,
        reference=config.reference,
        split=old.get("split", "test"),
        tuning=config.tuning,
    ).save_header(folder)
    text = yaml.safe_dump(plain_values(config.settings), sort_keys=False, allow_unicode=True)
    write_text(folder / CONFIG, text)


def _check_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse settings that the finished runs, maybe of other seeds and methods, did not have."""
    if not before:
        return
    done = {run.label for run in Comparison.load(folder).runs if run.status == "done"}
    fields = TrainingSettings.model_fields
    # a key that is missing was None, or was no setting yet
    known = {*before, *(key for key, field in fields.items() if field.default is None)} - FREE
    pairs = {key: (before.get(key), now.get(key)) for key in ("normalize", *fields) if key in known}
    for label in done.intersection(before.get("methods", {}), now["methods"]):
        pairs[f"method {label!r}"] = (before["methods"][label], now["methods"][label])
    changed = [f"{key} was {old!r}, now {new!r}" for key, (old, new) in pairs.items() if old != new]
    if changed and done:
        raise ConfigError(
            f"{folder} holds runs with other settings ({'; '.join(changed)}), and figures of different "
            "settings do not belong in one table; choose another output folder, or delete this one"
        )


def _described(entry: Any) -> Any:
    extra: dict[str, Any] = dict(entry.settings)
    if entry.extra_capacity is not None:
        extra["extra_capacity"] = entry.extra_capacity or True
    return {"method": entry.method, **extra} if extra else entry.method


def _versions(threads: int) -> dict[str, str]:
    import numpy

    return {
        "mtlkit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads per run": str(threads),
        "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([_program(), *sys.argv[1:]]),
    }


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "mtlkit" if name == "__main__.py" else name


def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def _timing(config: CompareConfig, folder: Path, plan: _Plan, table: LiveTable) -> dict[str, float]:
    """Step times from ``timing.json``, or measured now; a resumed comparison keeps the old ones."""
    if config.reference is None:
        return {}
    path = folder / TIMING
    known = _known_ratios(path, config.reference)
    firsts = {job.label: job for job in reversed(plan.jobs) if job.task is None}
    firsts = {entry.label: firsts[entry.label] for entry in config.entries}
    missing = [label for label in firsts if label not in known]
    if config.timing == 0 or not missing:
        return known
    chosen = {label: firsts[label] for label in dict.fromkeys([config.reference, *missing])}

    def report(done: int, total: int) -> None:
        table.note(f"timing a step of {len(chosen)} methods: round {done} of {total}")

    threads = torch.get_num_threads()
    torch.set_num_threads(next(iter(chosen.values())).threads)
    try:
        found = time_steps(chosen, config.reference, config.timing, report)
    except MtlkitError:
        found = {}  # the error will show up in the runs themselves
    finally:
        torch.set_num_threads(threads)
    known = found | known
    write_json(path, {"rounds": config.timing, "reference": config.reference, "ratios": known})
    return known


def _known_ratios(path: Path, reference: str) -> dict[str, float]:
    """The step times of ``timing.json`` as multiples of this reference's; none where it has none."""
    if not path.is_file():
        return {}
    timing = json.loads(path.read_text(encoding="utf-8"))
    ratios: dict[str, float] = timing["ratios"]
    if timing.get("reference", reference) != reference:
        unit = ratios.get(reference)
        ratios = {} if unit is None else {label: ratio / unit for label, ratio in ratios.items()}
        write_json(path, {**timing, "reference": reference, "ratios": ratios})
    return ratios


def _record(
    comparison: Comparison,
    folder: Path,
    plan: _Plan,
    label: str,
    seed: int,
    ratios: Mapping[str, float],
    failure: tuple[Job, str] | None = None,
) -> None:
    """Append a run to the results once all its trainings have finished, or one has failed."""
    parts = plan.parts(label, seed)
    method = parts[0].train["method"] if parts[0].task is None else ONE_EACH
    run = Run(label, seed, method=method, step_ratio=ratios.get(label), kind=parts[0].kind)
    if failure is not None:
        job, error = failure
        run.status = "failed"
        run.error = error if job.task is None else f"{job.task}: {error}"
    else:
        outcomes = [read_outcome(job) for job in parts]
        if any(outcome is None for outcome in outcomes):
            return
        for outcome in outcomes:
            assert outcome is not None
            run.metrics |= outcome.metrics
            if outcome.split not in ("test", comparison.split):
                comparison.split = outcome.split
                comparison.save_header(folder)
        run.seconds = sum(outcome.seconds for outcome in outcomes if outcome is not None)
        run.steps = sum(outcome.steps for outcome in outcomes if outcome is not None)
        if parts[0].task is not None:
            _join_histories(folder, run, parts)
    known = comparison.find(label, seed)
    if known is not None:
        if known.status == "done":
            return
        comparison.runs.remove(known)
    comparison.runs.append(run)
    append_result(folder, run)


def _join_histories(folder: Path, run: Run, parts: Sequence[Job]) -> None:
    """Merge the histories of single-task networks: rows of the same step become one."""
    rows: dict[tuple[int, str], HistoryRow] = {}
    for job in parts:
        for row in read_history(job.folder)[0]:
            whole = rows.setdefault((row.step, row.split), HistoryRow(row.step, row.epoch, row.split))
            whole.losses |= row.losses
            whole.metrics |= row.metrics
    run.history = [rows[key] for key in sorted(rows)]
    write_history(folder, run)


def _check_equal_starts(plan: _Plan) -> None:
    """Check that all runs of a seed had the same data, initial weights and first batch."""
    for seed in dict.fromkeys(job.seed for job in plan.jobs):
        outcomes = {job.name: read_outcome(job) for job in plan.jobs if job.seed == seed}
        for what in ("data", "weights", "batch"):
            sums = {name: getattr(o, what) for name, o in outcomes.items() if o is not None}
            found = {name: value for name, value in sums.items() if value is not None}
            if len(set(found.values())) > 1:
                if what == "data":
                    raise UsageError(
                        f"the data have changed since the first runs of seed {seed}: inputs or labels "
                        "are not those of all runs, and a comparison of them means nothing. Take "
                        "another output folder, or restore the data"
                    )
                raise UsageError(
                    f"runs of seed {seed} did not start alike ({what}: {found}); a comparison of them "
                    "means nothing. Does a method or the network draw random numbers when it is built?"
                )
