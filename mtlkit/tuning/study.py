"""The search itself: every method gets the same number of trials, judged on validation only."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mtlkit.errors import ConfigError, MtlkitError, UsageError, unknown_name
from mtlkit.evaluation.compare import Stopped
from mtlkit.evaluation.compare_config import Entry
from mtlkit.evaluation.jobs import Job, Outcome, run_job, write_json
from mtlkit.evaluation.launchers import choose_launcher, cores, number_of_jobs
from mtlkit.evaluation.results import TaskRecord, run_folder
from mtlkit.files import write_text
from mtlkit.search import Choice, FeatureShare
from mtlkit.tasks import Task
from mtlkit.training.config import TrainConfig
from mtlkit.training.logs import plain_values
from mtlkit.tuning.config import TuneConfig
from mtlkit.tuning.ledger import Ledger, Trial
from mtlkit.tuning.locks import locked
from mtlkit.tuning.objective import WORST, improvement
from mtlkit.tuning.page import write_page
from mtlkit.tuning.progress import TuneProgress
from mtlkit.tuning.samplers import grid_of
from mtlkit.tuning.spaces import MethodSpace, make_space
from mtlkit.tuning.winners import Winner, Winners

__all__ = ["Tuning", "tune"]

CONFIG = "tune.yaml"
HEADER = "tune.json"
_PAUSE = 0.5
_LEAST_TO_PRUNE = 4
"""Trials of a method that must have reached a step before any is ended there."""


@dataclass(frozen=True)
class Tuning:
    """A finished search.

    Attributes:
        winners: the best setting of every method, and the cost.
        trials: all trials, by label.
        spaces: what was searched, by label.
        failed: labels of the methods none of whose trials ended well.
    """

    winners: Winners
    trials: dict[str, list[Trial]]
    spaces: dict[str, MethodSpace]
    failed: list[str]


def tune(
    config: TuneConfig | dict[str, Any], output: str | os.PathLike[str], *, progress: bool | None = None
) -> Tuning:
    """Search settings for every method: the same number of trials each, judged on validation only.

    Call it again to go on with a search that was stopped or killed. Several processes may work on one
    folder at the same time; together they do what one would do.

    Args:
        config: a :class:`~mtlkit.tuning.config.TuneConfig`, or its keys and values.
        output: folder of the search; ``winners.yaml`` is written there.
        progress: False shows nothing; None a live table on a terminal, and lines elsewhere.

    Raises:
        ConfigError: for settings that do not fit, or another search in ``output``.
        Stopped: after Ctrl-C or SIGTERM.
    """
    if not isinstance(config, TuneConfig):
        config = TuneConfig.make(config)
    folder = Path(output)
    plan = _Plan.make(config, folder)
    plan.write()
    ledger = Ledger(folder, plan.spaces, plan.trials, config.sampler, config.seed)
    shown = TuneProgress(ledger, list(plan.spaces), progress)
    try:
        with shown:
            _Search(plan, ledger, shown).run()
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    finally:
        ledger.close()
    made = _result(plan, ledger)
    made.winners.save(folder)
    title = config.title or f"Search on {config.data}"
    write_page(folder, title, made.winners, made.trials, made.spaces)
    return made


@dataclass(frozen=True)
class _Plan:
    """What the settings and the data set say together."""

    config: TuneConfig
    folder: Path
    tasks: list[TaskRecord]
    entries: dict[str, Entry]
    spaces: dict[str, MethodSpace]
    trials: int
    threads: int

    @classmethod
    def make(cls, config: TuneConfig, folder: Path) -> _Plan:
        from mtlkit.data import load_dataset

        dataset = load_dataset(config.data, data_dir=config.data_dir, seed=config.seed)
        tasks = [Task.of(task) for task in dataset.tasks]
        names = tuple(task.name for task in tasks)
        for name in config.improvement_over or ():
            if name not in names:
                raise unknown_name("task in improvement_over", name, names)
        entries = {entry.label: entry for entry in config.entries}
        spaces = {}
        for label, entry in entries.items():
            train = {**config.train, **entry.settings}
            features = _features(entry, train, config, dataset)
            spaces[label] = make_space(entry.method, config.searched, train, names, features)
        largest = (
            max(len(grid_of(space)) for space in spaces.values()) if config.sampler == "grid" else 0
        )
        over = config.improvement_over or names
        records = [
            TaskRecord(task.name, dict(task.higher_is_better), task.compared)
            for task in tasks
            if task.name in over
        ]
        threads = _threads(folder, config)
        return cls(config, folder, records, entries, spaces, config.trials_for(largest), threads)

    def write(self) -> None:
        """Note what is searched; another search in the folder is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / HEADER
        with locked(self.folder / "study.lock"):
            old: dict[str, Any] = {}
            if path.is_file():
                old = json.loads(path.read_text(encoding="utf-8"))
            identity = self._identity()
            for key, value in identity.items():
                before = old.get("identity", {}).get(key, value)
                if key == "methods":  # methods may be added
                    before = {**value, **before} if isinstance(before, dict) else before
                    value = {**before, **value}
                if before != value:
                    raise ConfigError(
                        f"{self.folder} holds another search ({key} was {_shown(before, value)}); "
                        "choose another output folder, or delete this one"
                    )
                identity[key] = value
            write_json(path, {"identity": identity, "threads": self.threads})
            given = {k: v for k, v in self.config.settings.items() if k != "space"}
            if self.config.space is not None:
                given["space"] = {
                    key: list(search.values) if isinstance(search, Choice) else str(search)
                    for key, search in self.config.space.items()
                }
            text = yaml.safe_dump(plain_values(given), sort_keys=False, allow_unicode=True)
            write_text(self.folder / CONFIG, text)

    def _identity(self) -> dict[str, Any]:
        """What must not change when a search goes on; the number of trials may."""
        config = self.config
        methods = {
            label: {
                "method": self.entries[label].method,
                "settings": self.entries[label].settings,
                "space": {name: str(axis) for name, axis in space.axes.items()},
            }
            for label, space in self.spaces.items()
        }
        identity = {
            "train": config.train,
            "seed": config.seed,
            "sampler": config.sampler,
            "improvement_over": config.improvement_over,
            "prune": config.prune,
            "methods": methods,
        }
        plain: dict[str, Any] = json.loads(json.dumps(plain_values(identity)))
        return plain

    def job(self, trial: Trial) -> Job:
        """The training of a trial; the test set is never looked at."""
        entry, space = self.entries[trial.label], self.spaces[trial.label]
        base = {**self.config.train, **entry.settings}
        train = {**base, **space.settings(trial.point, base), "method": space.method(trial.point)}
        path = self.folder / "trials" / run_folder(trial.label, self.config.seed) / f"{trial.index:03d}"
        return self._job(path, trial.label, train, entry.extra_capacity)

    def reference_job(self) -> Job:
        """The plain run that all trials are measured against."""
        method = "normalize+sum" if self.config.normalize else "sum"
        train = {**self.config.train, "method": method}
        return self._job(self.folder / "reference", "reference", train, None)

    def _job(self, path: Path, label: str, train: dict[str, Any], capacity: Any) -> Job:
        config = self.config
        return Job(
            str(path),
            label,
            config.seed,
            {**train, "test": False},
            extra_capacity=capacity,
            threads=self.threads,
            device=config.device,
        )


class _Search:
    """Runs the trials that are not yet done."""

    def __init__(self, plan: _Plan, ledger: Ledger, shown: TuneProgress) -> None:
        self.plan = plan
        self.ledger = ledger
        self.shown = shown
        self.reference: dict[str, dict[str, float]] = {}
        self._running: dict[str, Trial] = {}
        self._paused: list[Job] = []
        self._seconds: dict[str, float] = {}

    def run(self) -> None:
        """Run until every method has had its trials, those of other processes included."""
        config, plan = self.plan.config, self.plan
        number = number_of_jobs(config.jobs, config.device)
        most = plan.trials * len(plan.spaces)
        launcher = choose_launcher(config.launcher, plan.folder, number, most, config.launcher_options)
        self.shown.note("the reference run, a plain sum")
        self._reference(run_job(plan.reference_job()))
        self.shown.note("")
        while True:
            launcher.run(self._jobs(), self._started, self._ended)
            if self.ledger.is_complete():
                return
            self.shown.note("other processes are at work on the last trials")
            time.sleep(_PAUSE)  # should one of them die, its trial is taken over

    def _reference(self, outcome: Outcome) -> None:
        if outcome.error:
            raise UsageError(
                f"the reference run, a plain sum with the given settings, failed: {outcome.error}"
            )
        self.reference = outcome.metrics
        improvement(self.reference, self.reference, self.plan.tasks)  # it has something to compare by

    def _jobs(self) -> Iterator[Job]:
        while True:
            while self._paused:
                yield self._paused.pop(0)
            trial = self.ledger.take()
            if trial is None:
                return
            twin = self.ledger.twin(trial)
            if twin is not None and twin.value is not None:
                self.ledger.finish(trial, twin.value, repeats=twin.index, seconds=0.0, steps=0)
                self.shown.ended(trial, twin.value, 0.0, "")
                continue
            job = self.plan.job(trial)
            self._running[job.folder] = trial
            yield replace(job, stop_at=next(iter(self.plan.config.prune), None))

    def _started(self, job: Job) -> None:
        self.shown.started(self._running[job.folder], job)

    def _ended(self, job: Job, outcome: Outcome) -> None:
        trial = self._running[job.folder]
        value = WORST
        if not outcome.error:
            value = improvement(outcome.metrics, self.reference, self.plan.tasks)
        facts: dict[str, Any] = {
            "method": job.train["method"],
            "seconds": round(outcome.seconds + self._seconds.pop(job.folder, 0.0), 3),
            "steps": outcome.steps,
            "metrics": plain_values(outcome.metrics),
        }
        if outcome.error:
            facts["error"] = outcome.error
        elif job.stop_at is not None and outcome.steps >= job.stop_at:
            if self._goes_on(trial, job.stop_at, value):
                self._seconds[job.folder] = facts["seconds"]
                later = (step for step in self.plan.config.prune if step > outcome.steps)
                self._paused.append(replace(job, stop_at=next(later, None)))
                return
            facts["pruned"] = job.stop_at
            shutil.rmtree(Path(job.folder) / "checkpoints", ignore_errors=True)
        del self._running[job.folder]
        self.ledger.finish(trial, value, **facts)
        self.shown.ended(trial, value, facts["seconds"], outcome.error)

    def _goes_on(self, trial: Trial, step: int, value: float) -> bool:
        """Whether a trial is not below the median of the earlier trials of its method at this step."""
        key = f"value at {step}"
        self.ledger.note(trial, **{key: value})
        others = [
            float(other.facts[key])
            for other in self.ledger.of(trial.label)
            if other.index < trial.index and key in other.facts
        ]
        return len(others) < _LEAST_TO_PRUNE or value >= statistics.median(others)


def _result(plan: _Plan, ledger: Ledger) -> Tuning:
    trials = {label: ledger.of(label) for label in plan.spaces}
    best, failed = [], []
    for label, known in trials.items():
        done = [trial for trial in known if trial.state == "done" and trial.value is not None]
        if not done:
            failed.append(label)
            continue
        first = max(done, key=lambda trial: (trial.value or 0.0, -trial.index))
        entry, space = plan.entries[label], plan.spaces[label]
        base = {**plan.config.train, **entry.settings}
        settings = {**entry.settings, **space.settings(first.point, base)}
        if entry.extra_capacity is not None:
            settings["extra_capacity"] = entry.extra_capacity or True
        method = space.method(first.point)
        if plan.config.normalize:
            method = method.removeprefix("normalize+")
        best.append(Winner(label, method, settings, first.value or 0.0, first.index))
    cost = {
        label: {
            "trials": len(known),
            "failed": sum(trial.state == "failed" for trial in known),
            "pruned": sum(trial.state == "pruned" for trial in known),
            "seconds": round(sum(trial.facts.get("seconds", 0.0) for trial in known), 1),
            "steps": sum(trial.facts.get("steps", 0) for trial in known),
        }
        for label, known in trials.items()
    }
    config = plan.config
    shared = {k: v for k, v in config.train.items() if k in config.model_fields_set}
    for key in ("normalize", "improvement_over"):
        if getattr(config, key):
            shared[key] = getattr(config, key)
    winners = Winners(shared, config.seed, plan.trials, config.sampler, best, cost)
    return Tuning(winners, trials, plan.spaces, failed)


def _features(entry: Entry, train: dict[str, Any], config: TuneConfig, dataset: Any) -> int | None:
    """Size of the rotated axis, where a share of it is searched."""
    from mtlkit.registry import methods
    from mtlkit.training.experiment import build_model

    searched = [
        search
        for part in methods.expand(entry.method)
        for option, search in methods.get(part.name).search_space.items()
        if option not in part.options
    ]
    if not any(isinstance(search, FeatureShare) for search in [*searched, *config.searched.values()]):
        return None
    settings = TrainConfig.make({**train, "method": entry.method, "seed": config.seed}, entry.label)
    try:
        model, _, _ = build_model(settings, dataset=dataset)
        size: int = model.method.rotations.shape[-1]  # type: ignore[union-attr, index, assignment]
    except MtlkitError:
        return None
    return size


def _threads(folder: Path, config: TuneConfig) -> int:
    """Threads per trial, as in the search's first call: they change the order of sums."""
    try:
        return int(json.loads((folder / HEADER).read_text(encoding="utf-8"))["threads"])
    except (OSError, ValueError, KeyError, TypeError):
        return max(1, cores() // number_of_jobs(config.jobs, config.device))


def _shown(before: Any, now: Any) -> str:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{before!r}, now {now!r}"
    changed: Sequence[str] = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return "; ".join(f"{key}: {before.get(key)!r}, now {now.get(key)!r}" for key in changed)
