"""The trials of a search, in Optuna's journal: who has which, and how they ended.

Each method is a study of its own. A trial is drawn under one lock for all processes, so that no method
gets more than the counted number. A trial whose process died is taken over with the same values, and
training resumes from its checkpoint. The system releases the locks of a process that is killed.

Optuna's samplers are seeded anew for every trial. The seed depends on the trial's index alone, not on
the process that draws it. So a search that was killed resumes as if it had not been, and the methods'
first trials have the same learning rates.
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
"""Points of a range in a grid."""


@dataclass(frozen=True)
class Trial:
    """One setting of one method.

    Attributes:
        label: of the method.
        index: from 0, in the order of drawing.
        point: drawn values by name.
        number: Optuna's.
        state: ``running``, ``done``, ``pruned`` or ``failed``.
        value: the objective; the higher the better.
        facts: ``seconds``, ``steps``, ``error``, ``repeats`` and whatever else was noted.
    """

    label: str
    index: int
    point: dict[str, Any]
    number: int
    state: str = "running"
    value: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the best trial that ended well, the first of equals; None where there is none."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    return max(done, key=lambda trial: (trial.value or 0.0, -trial.index), default=None)


class Ledger:
    """All trials of a folder; several processes may have one each.

    Every method gets ``trials`` of them, drawn from its space by ``tpe``, ``random`` or ``grid``.
    """

    def __init__(
        self, folder: Path, spaces: Mapping[str, MethodSpace], trials: int, sampler: str, seed: int
    ) -> None:
        self.folder, self.spaces = folder, dict(spaces)
        self.trials, self.sampler, self.seed = trials, sampler, seed
        self._workers = folder / "workers"
        self._workers.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._alive = FileLock(self._workers / self._name)  # held as long as this process lives
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
        """Take a trial whose process died, or a new one; None when all have been given away.

        Methods take turns, so that a search that is stopped has treated them alike.
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
        """Note how a trial ended; what another process has noted already stays."""
        with self._locked():
            study = self.studies[trial.label]
            if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                return
            self._note(trial.label, trial.number, **facts)
            study.tell(trial.number, value)

    def note(self, trial: Trial, **facts: Any) -> None:
        """Note something about a trial that runs."""
        with self._locked():
            self._note(trial.label, trial.number, **facts)

    def twin(self, trial: Trial) -> Trial | None:
        """Find a finished trial of the same method at the same point, which need not be repeated."""
        for other in self.of(trial.label):
            if other.index < trial.index and other.point == trial.point and other.state == "done":
                return other
        return None

    def of(self, label: str) -> list[Trial]:
        """Return the counted trials of a method, in order."""
        return [_read(label, frozen) for frozen in self._known(label)[: self.trials]]

    def is_complete(self) -> bool:
        """Whether every method has had its trials."""
        return all(
            len(known) >= self.trials and all(trial.state != "running" for trial in known)
            for known in map(self.of, self.spaces)
        )

    def close(self) -> None:
        """Release what this process had."""
        self._alive.release()
        (self._workers / self._name).unlink(missing_ok=True)

    def _is_alive(self, owner: str) -> bool:
        """Whether the process of this name still runs."""
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
        """Wait for the other processes, and remove a line that a killed one left unfinished."""
        with self._lock:
            path = self.folder / JOURNAL
            lines = path.read_bytes() if path.exists() else b""
            if lines and not lines.endswith(b"\n"):
                os.truncate(path, lines.rfind(b"\n") + 1)
            yield

    def _known(self, label: str) -> list[FrozenTrial]:
        """Return the trials that were drawn completely, by index."""
        trials = self.studies[label].get_trials(deepcopy=False)
        return sorted(
            (trial for trial in trials if "index" in trial.user_attrs),
            key=lambda trial: int(trial.user_attrs["index"]),
        )

    def _draw(self, label: str, index: int) -> Trial:
        study, space = self.studies[label], self.spaces[label]
        for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "index" not in frozen.user_attrs:  # its process died while it drew, so it never began
                study.tell(frozen.number, state=TrialState.FAIL)
        study.sampler = sampler_for(self.sampler, space, index, self.seed, self.trials)
        asked = study.ask(distributions(space))
        self._note(label, asked.number, owner=self._name)
        self._note(label, asked.number, index=index)  # last: it makes the trial count
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
    point = {  # four digits are enough for a setting, and readable
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in frozen.params.items()
    }
    index = int(frozen.user_attrs["index"])
    return Trial(label, index, point, frozen.number, state, frozen.value, facts)


def distributions(space: MethodSpace) -> dict[str, BaseDistribution]:
    """Return the space as Optuna wants it."""
    return {name: _distribution(axis) for name, axis in space.axes.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(axis.values)
    return FloatDistribution(axis.low, axis.high, log=isinstance(axis, LogUniform))


def grid_of(space: MethodSpace) -> list[dict[str, Any]]:
    """Return all points of the grid, the first axis slowest.

    Loss weights have none, and are drawn: a few points for each task make thousands together.
    """
    gridded = {name: axis for name, axis in space.axes.items() if not space.is_weight(name)}
    values = [axis.grid(GRID_POINTS) for axis in gridded.values()]
    return [dict(zip(gridded, row, strict=True)) for row in itertools.product(*values)]


def sampler_for(kind: str, space: MethodSpace, index: int, seed: int, trials: int) -> BaseSampler:
    """Return the sampler of one trial.

    The first trial of ``tpe`` and ``random`` is the point that the configuration and the methods'
    defaults give. A grid is visited in an order that is drawn once.
    """
    drawn = crc32(f"{seed}/{index}".encode())
    if kind == "grid":
        points = grid_of(space)
        order = np.random.default_rng(seed).permutation(len(points))  # a part is spread over the grid
        return _at(points[order[index % len(points)]], space, drawn)
    if index == 0:
        return _at(space.defaults, space, drawn)
    if kind == "random":
        return RandomSampler(seed=drawn)
    return TPESampler(seed=drawn, n_startup_trials=max(3, min(10, trials // 3)))


def _at(point: Mapping[str, Any], space: MethodSpace, seed: int) -> BaseSampler:
    """Return a sampler of one point; values that are missing or outside of the space are drawn."""
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
