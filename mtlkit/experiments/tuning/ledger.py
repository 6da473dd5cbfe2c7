"""The trials of a search in Optuna's journal: which process runs each, and how it ended.

Each method is an Optuna study. Trials are drawn under one lock for all processes, so that no method gets
too many. A trial whose process died is taken over by another process, which resumes from its checkpoint;
the operating system releases the locks of a killed process.

Optuna's sampler is seeded for every trial, by the trial's index and not by the process. So a killed
search resumes as if it had not been interrupted, and the first trials of all methods have the same
learning rates.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout

from mtlkit.config.search import Choice, LogUniform
from mtlkit.errors import MissingExtraError
from mtlkit.experiments.tuning.spaces import Axis, MethodSpace

try:
    import optuna
except ImportError:
    raise MissingExtraError("optuna", "tune", "mtlkit tune") from None
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)
JOURNAL = "journal.log"
GRID_POINTS = 5
"""Grid points of a range."""


@dataclass(frozen=True)
class Trial:
    """A trial of one method.

    Attributes:
        label: label of the method.
        index: number of the trial, from 0.
        point: drawn values by name.
        number: Optuna's number of the trial.
        state: ``running``, ``done``, ``pruned`` or ``failed``.
        value: objective; higher is better.
        facts: ``seconds``, ``steps``, ``error``, ``repeats`` and others.
    """

    label: str
    index: int
    point: dict[str, Any]
    number: int
    state: str = "running"
    value: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the best successful trial, the first of equals; None if there is none."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    return max(done, key=lambda trial: (trial.value or 0.0, -trial.index), default=None)


class Ledger:
    """All trials in a folder that several processes may share.

    Every method gets ``trials`` trials, drawn from its space by ``tpe``, ``random`` or ``grid``.
    """

    def __init__(
        self, folder: Path, spaces: Mapping[str, MethodSpace], trials: int, sampler: str, seed: int
    ) -> None:
        self.folder, self.spaces = folder, dict(spaces)
        self.trials, self.sampler, self.seed = trials, sampler, seed
        self._workers = folder / "workers"
        self._workers.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._alive = FileLock(self._workers / self._name)  # held until this process ends
        self._alive.acquire()
        self._lock = FileLock(folder / "study.lock", thread_local=False)
        with self._locked():
            backend = JournalFileBackend(str(folder / JOURNAL), lock_obj=self._lock)  # type: ignore[arg-type]
            self._storage = JournalStorage(backend)
            self.studies = {
                label: optuna.create_study(
                    storage=self._storage, study_name=label, direction="maximize", load_if_exists=True
                )
                for label in spaces
            }

    def take(self) -> Trial | None:
        """Take over a trial whose process died, or draw a new one; None if all are taken.

        Methods take turns, so that all have equally many trials when a search is stopped.
        """
        with self._locked():
            counts = {}
            for label in self.spaces:
                known = self._known(label)
                for frozen in known:
                    owner = frozen.user_attrs["owner"]
                    if frozen.state == TrialState.RUNNING and not self._is_alive(owner):
                        self._note(label, frozen.number, owner=self._name)
                        return _read(label, frozen)
                counts[label] = len(known)
            label = min(counts, key=counts.__getitem__)
            if counts[label] >= self.trials:
                return None
            return self._draw(label, counts[label])

    def finish(self, trial: Trial, value: float, **facts: Any) -> None:
        """Record the end of a trial, unless another process already did."""
        with self._locked():
            study = self.studies[trial.label]
            if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                return
            self._note(trial.label, trial.number, **facts)
            study.tell(trial.number, value)

    def note(self, trial: Trial, **facts: Any) -> None:
        """Record facts about a running trial."""
        with self._locked():
            self._note(trial.label, trial.number, **facts)

    def twin(self, trial: Trial) -> Trial | None:
        """Return an earlier finished trial of the same method at the same point, if there is one."""
        for other in self.of(trial.label):
            if other.index < trial.index and other.point == trial.point and other.state == "done":
                return other
        return None

    def of(self, label: str) -> list[Trial]:
        """Return the trials of a method, in order."""
        return [_read(label, frozen) for frozen in self._known(label)[: self.trials]]

    def is_complete(self) -> bool:
        """Return whether all trials of every method have ended."""
        return all(
            len(known) >= self.trials and all(trial.state != "running" for trial in known)
            for known in map(self.of, self.spaces)
        )

    def close(self) -> None:
        """Release the lock of this process."""
        self._alive.release()
        (self._workers / self._name).unlink(missing_ok=True)

    def _is_alive(self, owner: str) -> bool:
        """Return whether the process of this name is still running."""
        path = self._workers / owner
        if owner == self._name or not path.exists():
            return owner == self._name
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the journal, and remove a line that a killed process left unfinished."""
        with self._lock:
            path = self.folder / JOURNAL
            lines = path.read_bytes() if path.exists() else b""
            if lines and not lines.endswith(b"\n"):
                os.truncate(path, lines.rfind(b"\n") + 1)
            yield

    def _known(self, label: str) -> list[FrozenTrial]:
        """Return the completely drawn trials, by index."""
        trials = self.studies[label].get_trials(deepcopy=False)
        return sorted(
            (trial for trial in trials if "index" in trial.user_attrs),
            key=lambda trial: int(trial.user_attrs["index"]),
        )

    def _draw(self, label: str, index: int) -> Trial:
        study, space = self.studies[label], self.spaces[label]
        for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "index" not in frozen.user_attrs:  # its process died while drawing it
                study.tell(frozen.number, state=TrialState.FAIL)
        study.sampler = sampler_for(self.sampler, space, index, self.seed, self.trials)
        asked = study.ask({name: _distribution(axis) for name, axis in space.axes.items()})
        self._note(label, asked.number, owner=self._name)
        self._note(label, asked.number, index=index)  # last, because it marks the trial as drawn
        return _read(label, study.get_trials(deepcopy=False)[asked.number])

    def _note(self, label: str, number: int, **facts: Any) -> None:
        study = self._storage.get_study_id_from_name(label)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        for key, value in facts.items():
            self._storage.set_trial_user_attr(trial, key, value)


def _read(label: str, frozen: FrozenTrial) -> Trial:
    facts = {key: value for key, value in frozen.user_attrs.items() if key not in ("index", "owner")}
    state = "running"
    if frozen.state.is_finished():
        state = "failed" if facts.get("error") or frozen.value is None else "done"
        state = "pruned" if facts.get("pruned") else state
    point = {  # four digits are enough, and readable
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in frozen.params.items()
    }
    index = int(frozen.user_attrs["index"])
    return Trial(label, index, point, frozen.number, state, frozen.value, facts)


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(axis.values)
    return FloatDistribution(axis.low, axis.high, log=isinstance(axis, LogUniform))


def grid_of(space: MethodSpace) -> list[dict[str, Any]]:
    """Return all points of the grid; the first axis varies slowest.

    Loss weights are drawn instead: a few grid points per task would make thousands.
    """
    gridded = {name: axis for name, axis in space.axes.items() if not space.is_weight(name)}
    values = [axis.grid(GRID_POINTS) for axis in gridded.values()]
    return [dict(zip(gridded, row, strict=True)) for row in itertools.product(*values)]


def sampler_for(kind: str, space: MethodSpace, index: int, seed: int, trials: int) -> BaseSampler:
    """Return the sampler of one trial.

    The first trial of ``tpe`` and ``random`` has the given settings and the methods' defaults.
    """
    drawn = crc32(f"{seed}/{index}".encode())
    if kind == "grid":
        points = grid_of(space)
        # a random order, so that few trials spread over the grid
        order = np.random.default_rng(seed).permutation(len(points))
        return _at(points[order[index % len(points)]], space, drawn)
    if index == 0:
        return _at(space.defaults, space, drawn)
    if kind == "random":
        return RandomSampler(seed=drawn)
    return TPESampler(seed=drawn, n_startup_trials=max(3, min(10, trials // 3)))


def _at(point: Mapping[str, Any], space: MethodSpace, seed: int) -> BaseSampler:
    """Return a sampler of one point; values that are missing or outside the space are drawn."""
    fixed = {
        name: point[name]
        for name, axis in space.axes.items()
        if name in point and _contains(axis, point[name])
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return PartialFixedSampler(fixed, RandomSampler(seed=seed))


def _contains(axis: Axis, value: Any) -> bool:
    if isinstance(axis, Choice):
        return value in axis.values
    return isinstance(value, int | float) and axis.low <= value <= axis.high
