"""The trials of a search, in Optuna's journal: who has which, and how they ended.

Each method is a study of its own. A trial is drawn under one lock for all processes, so that no method
gets more than the counted number. A trial whose process died is taken over with the same values, and
training goes on from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtlkit.experiments.tuning.locks import JournalLock, Worker, locked
from mtlkit.experiments.tuning.samplers import (  # says so where Optuna is missing
    distributions,
    sampler_for,
)
from mtlkit.experiments.tuning.spaces import MethodSpace

# isort: split
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState

JOURNAL = "journal.log"


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


class Ledger:
    """All trials of a folder; several processes may have one each.

    Args:
        folder: of the search.
        spaces: by label.
        trials: for every method.
        sampler: ``tpe``, ``random`` or ``grid``.
        seed: of the drawing.
    """

    def __init__(
        self, folder: Path, spaces: Mapping[str, MethodSpace], trials: int, sampler: str, seed: int
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.spaces = dict(spaces)
        self.trials = trials
        self.sampler = sampler
        self.seed = seed
        self._lock = folder / "study.lock"
        self._worker = Worker(folder / "workers")
        with locked(self._lock):
            path = folder / JOURNAL
            backend = JournalFileBackend(str(path), lock_obj=JournalLock(path))  # type: ignore[arg-type]
            self._storage = JournalStorage(backend)
            self.studies = {
                label: optuna.create_study(
                    storage=self._storage, study_name=label, direction="maximize", load_if_exists=True
                )
                for label in spaces
            }

    def take(self) -> Trial | None:
        """A trial to work on: one whose process died, or a new one; None when all have been given away.

        Methods take turns, so that a search that is stopped has treated them alike.
        """
        with locked(self._lock):
            counts = {}
            for label in self.spaces:
                known = self._known(label)
                for frozen in known:
                    owner = frozen.user_attrs["owner"]
                    if frozen.state == TrialState.RUNNING and not self._worker.is_alive(owner):
                        self._note(label, frozen.number, owner=self._worker.name)
                        return _read(label, frozen)
                counts[label] = len(known)
            label = min(counts, key=counts.__getitem__)
            if counts[label] >= self.trials:
                return None
            return self._draw(label, counts[label])

    def finish(self, trial: Trial, value: float, **facts: Any) -> None:
        """Note how a trial ended; what another process has noted already stays."""
        with locked(self._lock):
            study = self.studies[trial.label]
            if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                return
            self._note(trial.label, trial.number, **facts)
            study.tell(trial.number, value)

    def note(self, trial: Trial, **facts: Any) -> None:
        """Note something about a trial that runs."""
        with locked(self._lock):
            self._note(trial.label, trial.number, **facts)

    def twin(self, trial: Trial) -> Trial | None:
        """A finished trial of the same method at the same point, which need not be repeated."""
        for other in self.of(trial.label):
            if other.index < trial.index and other.point == trial.point and other.state == "done":
                return other
        return None

    def of(self, label: str) -> list[Trial]:
        """The counted trials of a method, in order."""
        return [_read(label, frozen) for frozen in self._known(label)[: self.trials]]

    def is_complete(self) -> bool:
        """Whether every method has had its trials."""
        return all(
            len(known) >= self.trials and all(trial.state != "running" for trial in known)
            for known in map(self.of, self.spaces)
        )

    def close(self) -> None:
        """Give back what this process had."""
        self._worker.leave()

    def _known(self, label: str) -> list[FrozenTrial]:
        """Trials that were drawn completely, by index."""
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
        self._note(label, asked.number, owner=self._worker.name)
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
    point = {name: _rounded(value) for name, value in frozen.params.items()}
    index = int(frozen.user_attrs["index"])
    return Trial(label, index, point, frozen.number, state, frozen.value, facts)


def _rounded(value: Any) -> Any:
    """Four digits are enough for a setting, and people can read them."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
