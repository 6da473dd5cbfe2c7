"""Compare several methods on several seeds of one data set, as ``mtlkit compare`` does.

For each seed, all methods start from the same weights and see the same batches; the checkpoint with the
best validation (the mean over tasks of the log-ratios of their metrics) is tested. A comparison can be
resumed at any time: finished runs are read, the others resume from their checkpoints.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit.config.files import write_text
from mtlkit.config.launching import refuse_launcher
from mtlkit.config.search import Simplex
from mtlkit.config.spec import Part, format_spec
from mtlkit.errors import ConfigError, MissingExtraError, UsageError, unknown_name
from mtlkit.experiments.compare_config import CompareConfig, MethodsConfig
from mtlkit.experiments.compare_result import CompareResult, to_tidy_csv
from mtlkit.experiments.entries import SINGLE_TASK, Entry
from mtlkit.experiments.header import write_header
from mtlkit.experiments.jobs import Job, Outcome, load_data, open_data, planned_steps, read_outcome
from mtlkit.experiments.launchers import Launcher, choose_launcher, number_of_jobs, threads_of
from mtlkit.experiments.progress import Display, clock
from mtlkit.experiments.terminal import render_table
from mtlkit.experiments.timing import TIMING, check_first_step, known_or_timed, measure_steps
from mtlkit.report.endpoint import Endpoint
from mtlkit.report.histories import HistoryRow, read_history
from mtlkit.report.report import write_report
from mtlkit.report.results import (
    FRONT,
    HEADER,
    ONE_EACH,
    SIMPLE,
    Comparison,
    Run,
    TaskRecord,
    append_result,
    run_folder,
    write_history,
)
from mtlkit.report.tables import build_table, table_files
from mtlkit.report.verdict_text import plural
from mtlkit.tasks import Task

_MOST_SEEDS = 50
_FRONT_SEED = 20_221
_DRY_ROUNDS = 5
_FEW_TASKS = 8


class Stopped(KeyboardInterrupt):
    """A comparison was interrupted. Finished runs are on disk, and the same call resumes it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; finished work is kept in {folder}")
        self.folder = folder


def compare(
    config: CompareConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: bool | None = None,
    **settings: Any,
) -> CompareResult:
    """Compare methods on several seeds, with single-task baselines, statistics and a report.

    Call it again with the same output folder to resume an interrupted comparison, or to add methods and
    seeds.

    Args:
        config: keys and values of :class:`~mtlkit.experiments.compare_config.CompareConfig`, or a YAML
            file of them.
        output: output folder; unfinished runs are resumed.
        progress: False shows nothing; None shows a live table on a terminal, and lines elsewhere.
        **settings: further settings, which override those of ``config``.

    Raises:
        ConfigError: for invalid settings, or another comparison in ``output``.
        Stopped: after Ctrl-C or SIGTERM.
        LaunchError: under torchrun or ``accelerate launch``.

    >>> import mtlkit, tempfile
    >>> found = mtlkit.compare(
    ...     data="multidigits(train=64, val=32, test=32)",
    ...     methods=["sum", "imtl_g"],
    ...     seeds=1, epochs=1, timing=0, jobs=1, single_task=False,
    ...     output=tempfile.mkdtemp(),
    ...     progress=False,
    ... )
    >>> sorted(found.frame()["method"].unique())
    ['imtl_g', 'sum']
    """
    if output is None:
        raise ConfigError("compare() needs output=, the folder of the comparison, such as 'runs/mine'")
    chosen = CompareConfig.read(config, **settings)
    return CompareResult(run_comparison(chosen, output, progress=progress), Path(output))


def run_comparison(
    config: CompareConfig, output: str | os.PathLike[str], *, progress: bool | None = None
) -> Comparison:
    """Run the unfinished trainings of a comparison, then write tables and the report."""
    refuse_launcher("mtlkit compare")
    made = Work(config, Path(output)).run(progress)
    seeds = _seeds_that_fit(config, made)
    if len(seeds) > len(config.seeds):
        made = Work(config.model_copy(update={"seeds": seeds}), Path(output)).run(progress)
    return made


def plan_jobs(config: CompareConfig, folder: Path, tasks: Sequence[str], threads: int = 1) -> list[Job]:
    """List all trainings of a comparison, seed by seed."""
    jobs = []
    common: Any = {"threads": threads, "device": config.device, "keep_weights": config.keep_weights}
    alone: dict[str, Any] = {**config.train, "method": "sum"}
    divisor = len(tasks) if config.single_task == "same_budget" else 1
    for seed in config.seeds:
        for index, task in enumerate(tasks if config.single_task else ()):
            path = str(folder / "runs" / run_folder(SINGLE_TASK, seed) / f"task{index}")
            jobs.append(Job(path, SINGLE_TASK, seed, alone, task, divide_steps=divisor, **common))
        for entry in (*config.entries, *_front(config, tasks)):
            path = str(folder / "runs" / run_folder(entry.label, seed))
            train = {**config.train, "method": entry.method, **entry.settings}
            capacity, kind = entry.extra_capacity, entry.kind
            jobs.append(Job(path, entry.label, seed, train, None, capacity, kind=kind, **common))
    return jobs


def _front(config: CompareConfig, tasks: Sequence[str]) -> list[Entry]:
    """Draw the weightings of ``front`` on a logarithmic scale, the same for every seed.

    A larger number starts with the same weightings, so a comparison can be extended. They have the
    training settings of the tuned sum, if there is one, else of the sum.
    """
    known = {entry.label: entry.settings for entry in config.entries}
    settings = known.get("tuned sum", known.get("sum", {}))
    random, simplex = np.random.default_rng(_FRONT_SEED), Simplex()
    low, high = np.log([simplex.axis.low, simplex.axis.high])
    entries = []
    for index in range(config.front):
        numbers = np.exp(random.uniform(low, high, len(tasks))).tolist()
        weights = dict(zip(tasks, simplex.weights(numbers), strict=True))
        method = format_spec([Part("constant", {"weights": weights})])
        method = f"normalize+{method}" if config.normalize else method
        entries.append(Entry(f"front {index + 1}", method, None, settings, FRONT))
    return entries


def write_tables(comparison: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write ``table.*``, ``results.csv`` and ``report.html``; return the path of the report."""
    path = Path(folder)
    for name, text in table_files(build_table(comparison)).items():
        write_text(path / name, text)
    write_text(path / "results.csv", to_tidy_csv(comparison))
    return write_report(comparison, path / "report.html")


def load_tasks(config: MethodsConfig, seed: int) -> tuple[Any, list[TaskRecord]]:
    """Load the data set and describe its tasks."""
    open_data.cache_clear()  # files may have changed since the last comparison or search
    dataset = open_data(config.data, config.data_dir, seed)
    tasks = [Task.of(task) for task in dataset.tasks]
    names = [task.name for task in tasks]
    for name in config.improvement_over or ():
        if name not in names:
            raise unknown_name("task in improvement_over", name, names)
    records = [TaskRecord(task.name, dict(task.higher_is_better), task.compared) for task in tasks]
    return dataset, records


def first_jobs(config: CompareConfig, jobs: Sequence[Job]) -> dict[str, Job]:
    """Return one job of every method, by label."""
    firsts = {job.label: job for job in reversed(jobs) if job.task is None}
    return {entry.label: firsts[entry.label] for entry in config.entries}


class Work:
    """The trainings of a comparison and their outcomes so far."""

    def __init__(self, config: CompareConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        dataset, self.tasks = load_tasks(config, config.seeds[0])
        self.title = config.title or f"{dataset.title}: {len(config.entries)} methods"
        Endpoint.parse(config.primary, self.tasks, config.improvement_over)
        self.threads = threads_of(folder / HEADER, config)
        names = [task.name for task in self.tasks]
        self.jobs = plan_jobs(config, folder, names, self.threads)
        known = {job.folder: read_outcome(job) for job in self.jobs}  # also checks settings
        self.outcomes = {path: outcome for path, outcome in known.items() if outcome is not None}
        self.waiting = [job for job in self.jobs if job.folder not in self.outcomes]
        self.ratios: dict[str, float] = {}

    def describe(self) -> list[str]:
        """Describe the unfinished trainings; the time is estimated from a few steps of every method."""
        config, names = self.config, [task.name for task in self.tasks]
        number = number_of_jobs(config.jobs, config.device)
        rest = f", and {len(names) - _FEW_TASKS} more" if len(names) > _FEW_TASKS else ""
        lines = [
            f"data: {config.data}; {len(names)} tasks: {', '.join(names[:_FEW_TASKS])}{rest}",
            f"output: {self.folder}; {len(self.outcomes)} of {len(self.jobs)} training runs are done",
        ]
        if not self.waiting:
            return lines
        check_first_step(self.waiting, elsewhere=config.launcher == "submitit")
        times = measure_steps(first_jobs(config, self.jobs), _DRY_ROUNDS)
        seconds = {label: statistics.median(own) for label, own in times.items()}
        usual = statistics.median(seconds.values()) if seconds else 0.0
        total = 0.0
        for label, count in Counter(job.label for job in self.waiting).items():
            job = next(job for job in self.waiting if job.label == label)
            steps = planned_steps(job.config(), load_data(job.config()))[0] // job.divide_steps
            each = seconds.get(label, usual)
            total += count * steps * each
            runs = f"{plural(count, 'training run')} of {steps} steps"
            lines.append(f"  {label}: {runs}, {1000 * each:.3g} ms per step")
        hours = clock(total / min(number, len(self.waiting)))
        return [*lines, f"about {hours} with {number} in parallel, without validations"]

    def run(self, progress: bool | None) -> Comparison:
        """Run the unfinished trainings, then write tables and the report."""
        config, folder, waiting = self.config, self.folder, self.waiting
        finished = [job for job in self.jobs if job.folder in self.outcomes]
        check_first_step(waiting, elsewhere=config.launcher == "submitit")
        number, options = number_of_jobs(config.jobs, config.device), config.launcher_options
        launcher = Launcher()
        if waiting:
            launcher = choose_launcher(config.launcher, folder, number, len(waiting), options)
        write_header(config, folder, self.title, self.tasks, self.threads, grows=bool(waiting))
        self.comparison = comparison = Comparison.load(folder)
        for run in comparison.recovered:
            append_result(folder, run)
        show = Display(comparison.title, len(self.jobs), self._table, progress)
        try:
            with show:
                show.found(len(finished))
                if waiting:
                    show.note(f"{len(waiting)} training runs to do in {folder}")
                firsts, reference = first_jobs(config, self.jobs), config.reference
                path = folder / TIMING
                self.ratios = known_or_timed(path, firsts, reference, config.timing, show.note)
                for label, seed in dict.fromkeys((job.label, job.seed) for job in finished):
                    self._record(label, seed)
                self._add_simple_rows(show)
                if waiting:

                    def ended(job: Job, outcome: Outcome) -> None:
                        show.ended(job, "done", outcome.error)
                        self.outcomes[job.folder] = outcome
                        self._record(job.label, job.seed)

                    launcher.run(waiting, show.started, ended)
        except KeyboardInterrupt:
            if any(run.status == "done" for run in comparison.runs):
                write_tables(Comparison.load(folder), folder)
            raise Stopped(folder) from None
        self._check_equal_starts()
        made = Comparison.load(folder)
        write_tables(made, folder)
        return made

    def _table(self) -> Any:
        from rich.console import Console

        if not self.comparison.runs:
            return ""
        return render_table(build_table(self.comparison), Console(stderr=True).width)

    def _record(self, label: str, seed: int) -> None:
        """Append a run to the results once all its trainings have ended.

        A failed single-task network only lacks the metrics of its own task.
        """
        parts = [job for job in self.jobs if job.label == label and job.seed == seed]
        ended = [(job, self.outcomes[job.folder]) for job in parts if job.folder in self.outcomes]
        if len(ended) < len(parts):
            return
        done = [outcome for _, outcome in ended if not outcome.error]
        alone = parts[0].task is not None
        method = ONE_EACH if alone else parts[0].train["method"]
        run = Run(label, seed, method=method, step_ratio=self.ratios.get(label), kind=parts[0].kind)
        run.error = "; ".join(
            f"{job.task}: {outcome.error}" if alone else outcome.error
            for job, outcome in ended
            if outcome.error
        )
        if done:
            for outcome in done:
                run.metrics |= outcome.metrics
            run.seconds = sum(outcome.seconds for outcome in done)
            run.steps = sum(outcome.steps for outcome in done)
            run.best_last = sum(outcome.best_last for outcome in done) * 2 > len(done)
            if done[0].split not in ("test", self.comparison.split):
                self.comparison.split = done[0].split
                self.comparison.save_header(self.folder)
            if alone:
                _join_histories(self.folder, run, [job for job, outcome in ended if not outcome.error])
        else:
            run.status = "failed"
        before = self.comparison.find(label, seed)
        if before is not None:
            if before.status == "done" and not before.error:
                return
            self.comparison.runs.remove(before)
        self.comparison.runs.append(run)
        append_result(self.folder, run)

    def _add_simple_rows(self, show: Display) -> None:
        """Add the simple models of the data set, if it has any."""
        if not self.config.baselines:
            return
        for seed in self.config.seeds:
            if any(run.kind == SIMPLE and run.seed == seed for run in self.comparison.runs):
                continue
            job = next(job for job in self.jobs if job.seed == seed)
            dataset = load_data(job.config())
            if not hasattr(dataset, "baselines"):
                return
            show.note(f"fitting simple models, seed {seed}")
            try:
                rows = dataset.baselines()
            except MissingExtraError as error:
                show.note(str(error))
                return
            for label, metrics in rows.items():
                run = Run(label, seed, metrics=metrics, kind=SIMPLE)
                self.comparison.runs.append(run)
                append_result(self.folder, run)

    def _check_equal_starts(self) -> None:
        """Check that all runs of a seed had the same data, initial weights and first batch."""
        groups: dict[Any, dict[str, Outcome]] = {}
        for job in self.jobs:
            outcome = self.outcomes[job.folder]
            if not outcome.error:
                keys = ("architecture", "preference", "batch_size")
                network = (job.seed, *(job.train.get(key) for key in keys))
                groups.setdefault(network, {})[job.name] = outcome
        for (seed, *_), outcomes in groups.items():
            for what in ("data", "weights", "batch"):
                found = {name: getattr(outcome, what) for name, outcome in outcomes.items()}
                if len({value for value in found.values() if value is not None}) > 1:
                    raise UsageError(
                        f"runs of seed {seed} did not start alike ({what}: {found}) and cannot be "
                        "compared. Did the data change, or does a method or the network draw random "
                        "numbers when it is built?"
                    )


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


def seconds_per_seed(config: CompareConfig, made: Comparison) -> float:
    """Return the seconds per seed, for all methods and with parallel trainings."""
    seeds = {run.seed for run in made.runs if run.seconds}
    seconds = sum(run.seconds or 0.0 for run in made.runs)
    return seconds / max(1, len(seeds)) / number_of_jobs(config.jobs, config.device)


def _seeds_that_fit(config: CompareConfig, made: Comparison) -> tuple[int, ...]:
    """Return the given seeds, and as many more as fit into ``minutes``."""
    seeds = tuple(config.seeds)
    seconds = seconds_per_seed(config, made)
    if config.minutes is None or seconds == 0:
        return seeds
    number = min(_MOST_SEEDS, int(60 * config.minutes / seconds))
    first = max(seeds) + 1
    return (*seeds, *range(first, first + number - len(seeds)))
