"""The plan of a search: methods, search spaces, and the training of every trial."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from mtlkit.config.files import read_json, write_json
from mtlkit.config.logs import plain_values
from mtlkit.config.search import Choice
from mtlkit.config.settings import describe_changes
from mtlkit.config.yaml_files import write_yaml
from mtlkit.errors import ConfigError
from mtlkit.experiments.compare import load_tasks
from mtlkit.experiments.entries import Entry
from mtlkit.experiments.jobs import Job
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
    """The plan of a search.

    Attributes:
        config: the settings.
        folder: folder of the search.
        title: title of its page and of its live table.
        tasks: tasks that trials are judged by.
        entries: methods by label.
        spaces: search spaces by label.
        trials: trials per method.
        threads: threads of torch per training.
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
        """Make a plan from settings and the tasks of the data set."""
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
        """Write the plan; raise a ConfigError if the folder contains another search."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / HEADER
        with FileLock(self.folder / "study.lock"):
            old, now = (read_json(path) or {}).get("identity", {}), self._identity()
            # methods may be added, and older folders lack some keys
            changes = describe_changes(old, now, (key for key in now if key in old))
            if changes:
                raise ConfigError(
                    f"{self.folder} contains another search ({changes}); "
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
        """Return the settings that must not change when a search is resumed."""
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
        """The seeds of every trial."""
        return list(range(self.config.seed, self.config.seed + self.config.trial_seeds))

    def job(self, trial: Trial, seed: int) -> Job:
        """Return the training of a trial with one seed, without the test set."""
        entry, space = self.entries[trial.label], self.spaces[trial.label]
        base = {**self.config.train, **entry.settings}
        train = {**base, **space.settings(trial.point, base), "method": space.method(trial.point)}
        path = self.folder / "trials" / run_folder(trial.label, seed) / f"{trial.index:03d}"
        return self._job(path, trial.label, seed, train, entry.extra_capacity)

    def reference_job(self, seed: int) -> Job:
        """Return the plain run that the trials of a seed are compared with."""
        method = "normalize+sum" if self.config.normalize else "sum"
        train = {**self.config.train, "method": method}
        name = "reference" if seed == self.config.seed else f"reference-seed{seed}"
        return self._job(self.folder / name, "reference", seed, train, None)

    def _job(self, path: Path, label: str, seed: int, train: dict[str, Any], capacity: Any) -> Job:
        config = self.config
        if seed != config.seed:  # keep the test samples of the first seed
            train = {**train, "data": hold_out_test(train["data"], config.seed)}
        options: Any = {"threads": self.threads, "device": config.device}
        return Job(str(path), label, seed, {**train, "test": False}, extra_capacity=capacity, **options)


def _rotated(entry: Entry, train: dict[str, Any], seed: int, dataset: Any) -> int:
    """Return the size of the axis that a method rotates in this network."""
    from mtlkit.training.experiment import build_model

    settings = TrainConfig.make({**train, "method": entry.method, "seed": seed}, entry.label)
    model: Any = build_model(settings, dataset=dataset)[0]
    size: int = model.method.rotations.shape[-1]
    return size
