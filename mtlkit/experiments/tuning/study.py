"""Run a search: every method gets the same number of trials, judged on validation data only."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtlkit.config.launching import refuse_launcher
from mtlkit.config.logs import plain_values
from mtlkit.errors import UsageError
from mtlkit.experiments.compare import Stopped
from mtlkit.experiments.jobs import Job, Outcome
from mtlkit.experiments.launchers import choose_launcher, number_of_jobs
from mtlkit.experiments.progress import Display
from mtlkit.experiments.terminal import describe_trial, winners_table
from mtlkit.experiments.tuning.config import TuneConfig
from mtlkit.experiments.tuning.ledger import Ledger, Trial, best_of
from mtlkit.experiments.tuning.objective import WORST, improvement
from mtlkit.experiments.tuning.page import write_page
from mtlkit.experiments.tuning.plan import Plan
from mtlkit.experiments.tuning.spaces import MethodSpace
from mtlkit.experiments.tuning.winners import Winner, Winners

_PAUSE = 0.5
_LEAST_TO_PRUNE = 4
"""Trials of a method that must have reached a step before any is pruned there."""


@dataclass(frozen=True)
class Tuning:
    """A finished search.

    Attributes:
        winners: best settings of every method, and the cost.
        trials: all trials by label.
        spaces: search spaces by label.
        failed: labels of the methods whose trials all failed.

    >>> winners = Winners({"data": "multidigits"}, seed=100, trials=20, sampler="tpe")
    >>> Tuning(winners, trials={}, spaces={}, failed=["mgda"]).failed
    ['mgda']
    """

    winners: Winners
    trials: dict[str, list[Trial]]
    spaces: dict[str, MethodSpace]
    failed: list[str]


def tune(
    config: TuneConfig | dict[str, Any] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    progress: bool | None = None,
) -> Tuning:
    """Tune the settings of every method, with the same number of trials, on validation data only.

    Call it again to resume an interrupted search. Several processes may share one folder; together they
    do the work of one.

    Args:
        config: a :class:`~mtlkit.experiments.tuning.config.TuneConfig`, its keys and values, or a
            YAML file of them.
        output: output folder, for ``winners.yaml`` and the trials.
        progress: False shows nothing; None shows a live table on a terminal, and lines elsewhere.

    Raises:
        ConfigError: for invalid settings, or another search in ``output``.
        UsageError: under torchrun or ``accelerate launch``.
        Stopped: after Ctrl-C or SIGTERM.

    >>> import mtlkit, tempfile
    >>> settings = {"data": "multidigits(train=64, val=32, test=32)", "methods": ["sum"], "jobs": 1}
    >>> settings |= {"epochs": 1, "trials": 2, "tuned_sum": False}
    >>> found = mtlkit.tune(settings, tempfile.mkdtemp(), progress=False)
    >>> [(winner.label, list(winner.settings)) for winner in found.winners.best]
    [('sum', ['lr'])]
    """
    refuse_launcher("mtlkit tune")
    config = TuneConfig.read(config)
    folder = Path(output)
    plan = Plan.make(config, folder)
    plan.write()
    ledger = Ledger(folder, plan.spaces, plan.trials, config.sampler, config.seed)
    search = _Search(plan, ledger, progress)
    try:
        with search.shown:
            search.run()
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    finally:
        ledger.close()
    made = _result(plan, ledger)
    made.winners.save(folder)
    write_page(folder, plan.title, made.winners, made.trials, made.spaces)
    return made


class _Search:
    """Runs the unfinished trials."""

    def __init__(self, plan: Plan, ledger: Ledger, progress: bool | None) -> None:
        self.plan = plan
        self.ledger = ledger
        self.references: dict[int, dict[str, dict[str, float]]] = {}
        self._running: dict[str, Trial] = {}
        self._outcomes: dict[tuple[str, int], list[Outcome]] = {}
        self._paused: list[Job] = []
        self.shown = Display(plan.title, plan.trials * len(plan.spaces), self._table, progress)
        self.shown.found(sum(t.state != "running" for known in self._trials().values() for t in known))

    def run(self) -> None:
        """Run until all trials have ended, including those of other processes."""
        config, plan = self.plan.config, self.plan
        number = number_of_jobs(config.jobs, config.device)
        most = plan.trials * len(plan.spaces)
        launcher = choose_launcher(config.launcher, plan.folder, number, most, config.launcher_options)
        self.shown.note("reference run: a plain sum with the given settings")
        references = [plan.reference_job(seed) for seed in plan.seeds]
        # with one seed, the reference is trained in this process
        first = choose_launcher("local", plan.folder, min(number, len(references)), number, {})
        first.run(references, self.shown.started, self._reference)
        while True:
            launcher.run(self._jobs(), self._started, self._ended)
            if self.ledger.is_complete():
                return
            if not self._paused:
                self.shown.note("waiting for trials of other processes")
                time.sleep(_PAUSE)  # if one dies, its trial is taken over

    def _trials(self) -> dict[str, list[Trial]]:
        return {label: self.ledger.of(label) for label in self.plan.spaces}

    def _table(self) -> Any:
        return winners_table(self._trials(), self.plan.spaces, self.plan.trials)

    def _reference(self, job: Job, outcome: Outcome) -> None:
        self.shown.ended(job, "", counts=False)
        if outcome.error:
            raise UsageError(
                f"the reference run, a plain sum with the given settings, failed: {outcome.error}"
            )
        self.references[job.seed] = outcome.metrics
        # raises if nothing can be compared
        improvement(outcome.metrics, outcome.metrics, self.plan.tasks)

    def _jobs(self) -> Iterator[Job]:
        while True:
            while self._paused:
                yield self._paused.pop(0)
            trial = self.ledger.take()
            if trial is None:
                return
            job = self.plan.job(trial, self.plan.seeds[0])
            twin = self.ledger.twin(trial)
            if twin is not None and twin.value is not None:
                self.ledger.finish(trial, twin.value, repeats=twin.index, seconds=0.0, steps=0)
                self._show_end(job, trial, twin.value)
                continue
            self._outcomes[trial.label, trial.index] = []
            self._running[job.folder] = trial
            yield replace(job, stop_at=self._next_stop(trial))

    def _show_end(self, job: Job, trial: Trial, value: float, error: str = "") -> None:
        shown = describe_trial(trial, self.plan.spaces[trial.label])
        self.shown.ended(job, f"{value:+.2f} %  {shown}", error)

    def _next_stop(self, trial: Trial) -> int | None:
        """Return the next step at which to judge a trial; a resumed one may have passed some."""
        for step in self.plan.config.prune:
            value = trial.facts.get(_value_at(step))
            if value is None or not self._goes_on(trial, step, float(value)):
                return step
        return None

    def _started(self, job: Job) -> None:
        trial = self._running[job.folder]
        seed = f", seed {job.seed}" if len(self.plan.seeds) > 1 else ""
        self.shown.started(job, f"{trial.label}, trial {trial.index + 1}{seed}")

    def _ended(self, job: Job, outcome: Outcome) -> None:
        trial = self._running[job.folder]
        known = self._outcomes[trial.label, trial.index]
        value = WORST
        if not outcome.error:
            value = improvement(outcome.metrics, self.references[job.seed], self.plan.tasks)
        facts: dict[str, Any] = {}
        if outcome.error:
            facts["error"] = outcome.error
        elif job.stop_at is not None and outcome.steps >= job.stop_at:
            self.ledger.note(trial, **{_value_at(job.stop_at): value})
            if self._goes_on(trial, job.stop_at, value):
                later = (step for step in self.plan.config.prune if step > outcome.steps)
                self._paused.append(replace(job, stop_at=next(later, None)))
                return
            facts["pruned"] = job.stop_at
            shutil.rmtree(Path(job.folder) / "checkpoints", ignore_errors=True)
        known.append(outcome)
        del self._running[job.folder]
        if not facts and len(known) < len(self.plan.seeds):
            following = self.plan.job(trial, self.plan.seeds[len(known)])
            self._running[following.folder] = trial
            self._paused.append(following)
            self.shown.ended(job, "", counts=False)
            return
        if not facts and len(known) > 1:
            values = [
                improvement(one.metrics, self.references[seed], self.plan.tasks)
                for one, seed in zip(known, self.plan.seeds, strict=True)
            ]
            value, facts["values"] = statistics.fmean(values), values
        facts |= {
            "method": job.train["method"],
            "seconds": round(sum(one.seconds for one in known), 3),
            "steps": sum(one.steps for one in known),
            "metrics": plain_values(known[0].metrics),
        }
        self.ledger.finish(trial, value, **facts)
        self._show_end(job, trial, value, outcome.error)

    def _goes_on(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether a trial reaches the median of its method's earlier trials at this step."""
        key = _value_at(step)
        others = [
            float(other.facts[key])
            for other in self.ledger.of(trial.label)
            if other.index < trial.index and key in other.facts
        ]
        return len(others) < _LEAST_TO_PRUNE or value >= statistics.median(others)


def _value_at(step: int) -> str:
    """Return the key of a trial's value at a step in the ledger."""
    return f"value at {step}"


def _result(plan: Plan, ledger: Ledger) -> Tuning:
    trials = {label: ledger.of(label) for label in plan.spaces}
    best, failed = [], []
    for label, known in trials.items():
        first = best_of(known)
        if first is None:
            failed.append(label)
            continue
        entry, space = plan.entries[label], plan.spaces[label]
        base = {**plan.config.train, **entry.settings}
        settings = {**entry.own, **space.settings(first.point, base)}
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
    winners = Winners(shared, config.seed, plan.trials, config.sampler, best, cost, config.trial_seeds)
    return Tuning(winners, trials, plan.spaces, failed)
