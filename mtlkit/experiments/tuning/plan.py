"""What a search is made of: the methods with their spaces, and the training of every trial."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from mtlkit.config.logs import plain_values
from mtlkit.config.search import Choice
from mtlkit.config.yaml_files import write_yaml
from mtlkit.errors import ConfigError
from mtlkit.experiments.compare import load_tasks
from mtlkit.experiments.entries import Entry
from mtlkit.experiments.jobs import Job, write_json
from mtlkit.experiments.launchers import threads_of
from mtlkit.experiments.tuning.config import TuneConfig
from mtlkit.experiments.tuning.ledger import Trial, grid_of
from mtlkit.experiments.tuning.spaces import MethodSpace, make_space
from mtlkit.experiments.tuning.winners import hold_out_test
from mtlkit.report.results import TaskRecord, run_folder
from mtlkit.training.config import TrainConfig

CONFIG = "tune.yaml"
HEADER = "tune.json"


@dataclass(frozen=True)
class Plan:
    """What the settings and the data set say together.

    Attributes:
        config: the settings.
        folder: of the search.
        title: of its page and of its live table.
        tasks: that trials are judged by.
        entries: the methods, by label.
        spaces: what is searched for each.
        trials: for every method.
        threads: of torch, per training.
    """

    config: TuneConfig
    folder: Path
    title: str
    tasks: list[TaskRecord]
    entries: dict[str, Entry]
    spaces: dict[str, MethodSpace]
    trials: int
    threads: int

    @classmethod
    def make(cls, config: TuneConfig, folder: Path) -> Plan:
        """Make the plan of these settings; the data set is loaded for its tasks."""
        dataset, tasks = load_tasks(config, config.seed)
        names = tuple(task.name for task in tasks)
        entries = {entry.label: entry for entry in config.entries}
        spaces = {}
        for label, entry in entries.items():
            train = {**config.train, **entry.settings}
            features = partial(_rotated, entry, train, config.seed, dataset)
            spaces[label] = make_space(entry.method, config.searched, train, names, features)
        sizes = [len(grid_of(space)) for space in spaces.values()] if config.sampler == "grid" else [0]
        over = config.improvement_over or names
        records = [task for task in tasks if task.name in over]
        threads = threads_of(folder / HEADER, config)
        title = config.title or f"Search on {dataset.title}"
        trials = config.trials_for(max(sizes))
        return cls(config, folder, title, records, entries, spaces, trials, threads)

    def write(self) -> None:
        """Note what is searched; another search in the folder is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / HEADER
        with FileLock(self.folder / "study.lock"):
            text = path.read_text(encoding="utf-8") if path.is_file() else "{}"
            old, now = json.loads(text).get("identity", {}), self._identity()
            # methods may be added, and older folders lack some keys
            changed = [key for key in now if key in old and old[key] != now[key]]
            if changed:
                changes = [f"{key} was {old[key]!r}, now {now[key]!r}" for key in changed]
                raise ConfigError(
                    f"{self.folder} holds another search ({'; '.join(changes)}); "
                    "choose another output folder, or delete this one"
                )
            write_json(path, {"identity": {**old, **now}, "threads": self.threads})
            given = {k: v for k, v in self.config.settings.items() if k != "space"}
            if self.config.space is not None:
                given["space"] = {
                    key: list(search.values) if isinstance(search, Choice) else str(search)
                    for key, search in self.config.space.items()
                }
            write_yaml(self.folder / CONFIG, given)

    def _identity(self) -> dict[str, Any]:
        """Return what must not change when a search is resumed; the number of trials may."""
        keys = ("seed", "trial_seeds", "sampler", "improvement_over", "prune")
        identity = {key: getattr(self.config, key) for key in keys}
        identity |= {f"train.{key}": value for key, value in self.config.train.items()}
        for label, entry in self.entries.items():
            space = {name: str(axis) for name, axis in self.spaces[label].axes.items()}
            identity |= {
                f"{label}.method": entry.method,
                f"{label}.settings": entry.settings,
                f"{label}.extra_capacity": entry.extra_capacity,
                f"{label}.space": space,
            }
        plain: dict[str, Any] = plain_values(identity)
        return plain

    @property
    def seeds(self) -> list[int]:
        """The seeds that every trial is trained with."""
        return list(range(self.config.seed, self.config.seed + self.config.trial_seeds))

    def job(self, trial: Trial, seed: int) -> Job:
        """Return the training of a trial with one seed; the test set is never looked at."""
        entry, space = self.entries[trial.label], self.spaces[trial.label]
        base = {**self.config.train, **entry.settings}
        train = {**base, **space.settings(trial.point, base), "method": space.method(trial.point)}
        path = self.folder / "trials" / run_folder(trial.label, seed) / f"{trial.index:03d}"
        return self._job(path, trial.label, seed, train, entry.extra_capacity)

    def reference_job(self, seed: int) -> Job:
        """Return the plain run that all trials of a seed are measured against."""
        method = "normalize+sum" if self.config.normalize else "sum"
        train = {**self.config.train, "method": method}
        name = "reference" if seed == self.config.seed else f"reference-seed{seed}"
        return self._job(self.folder / name, "reference", seed, train, None)

    def _job(self, path: Path, label: str, seed: int, train: dict[str, Any], capacity: Any) -> Job:
        config = self.config
        if seed != config.seed:  # the test samples that the first seed set aside stay aside
            train = {**train, "data": hold_out_test(train["data"], config.seed)}
        return Job(
            str(path),
            label,
            seed,
            {**train, "test": False},
            extra_capacity=capacity,
            threads=self.threads,
            device=config.device,
        )


def _rotated(entry: Entry, train: dict[str, Any], seed: int, dataset: Any) -> int:
    """Return the size of the axis that a method rotates in the network of these settings."""
    from mtlkit.training.experiment import build_model

    settings = TrainConfig.make({**train, "method": entry.method, "seed": seed}, entry.label)
    model: Any = build_model(settings, dataset=dataset)[0]
    size: int = model.method.rotations.shape[-1]
    return size
