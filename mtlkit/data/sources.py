"""The data set ``sources``: each task has its own data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from mtlkit.config.spec import SpecLike
from mtlkit.data.base import DataSet, Split, SplitName, load_dataset, register_dataset
from mtlkit.data.files import DataDir, DataError
from mtlkit.data.mixing import BatchesOf, InTurn, MixedBatches, mixing_shares
from mtlkit.data.mixture import Mixture
from mtlkit.data.table import Table
from mtlkit.data.table.cells import ColumnType, import_pandas
from mtlkit.data.table.columns import fit_columns
from mtlkit.errors import SpecError


@register_dataset("sources")
class Sources(DataSet):
    """Several data sets, each with its own tasks, for one network.

    The only task of a source is named after the source; several tasks keep their names. Tables are
    encoded together, and columns that a table lacks are missing values there. Other sources must have
    inputs of the same shape, unless every batch is from one source and the network accepts all shapes.

    A source that is exhausted restarts in a new order. An epoch has as many samples as all sources
    together, for every mixing.

    Args:
        data_dir: folder with the sources' files; None means ``$MTLKIT_DATA``.
        seed: seed of every source, and of the order of the batches.
        of: the sources by name, each a data set's config string.
        mixing: fractions of the sources in training: ``uniform``, ``proportional`` to their numbers of
            samples, or ``temperature(T)``, proportional to size^(1/T).
        batches: ``all``: every batch has samples of all sources, by their fractions; ``one``: every
            batch is from one source, drawn by the fractions, and a method sees one gradient at a time.
    """

    summary = "each task with its own data"
    origin = "other data sets"

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        of: Mapping[str, Any],
        mixing: str = "proportional",
        batches: BatchesOf = "all",
    ) -> None:
        super().__init__(data_dir, seed)
        if not of:
            raise SpecError("data set sources needs at least one source: of={task: data set}")
        mixing_shares(mixing, [1.0] * len(of))  # raises for an unknown mixing
        self.mixing = mixing
        self.batches: BatchesOf = batches
        self.sources = {str(name): load_dataset(spec, data_dir, seed) for name, spec in of.items()}
        tables = [source for source in self.sources.values() if isinstance(source, Table)]
        together = len(tables) == len(self.sources)
        if together and len(tables) > 1:
            _encode_together(tables)
        self._renamed = {
            name: {source.tasks[0].name: name} if len(source.tasks) == 1 else {}
            for name, source in self.sources.items()
        }
        self.describe()
        if together:
            self.preprocessing = self._joint_preprocessing(tables)
        else:
            found = [source.preprocessing for source in self.sources.values()]
            if len({each and each.to_json() for each in found}) == 1:  # images of one size
                self.preprocessing = found[0]

    @property
    def title(self) -> str:
        """The names of the sources."""
        return f"sources {', '.join(self.sources)}"

    def describe(self) -> None:
        """Set tasks, input shape and default network from the sources."""
        tasks, owners = [], dict[str, str]()
        for name, source in self.sources.items():
            for task in source.tasks:
                named = copy.copy(task)
                named.name = self._renamed[name].get(task.name, task.name)
                if named.name in owners:
                    raise SpecError(
                        f"task {named.name!r} is in source {owners[named.name]!r} and in {name!r}; "
                        "tasks of different sources need different names"
                    )
                owners[named.name] = name
                tasks.append(named)
        self.tasks = tuple(tasks)
        shapes = {name: source.input_shape for name, source in self.sources.items()}
        if self.batches == "all" and len(set(shapes.values())) > 1:
            listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise SpecError(
                f"batches of all sources need inputs of the same shape, not {listing}; change the "
                "sources, or set batches=one and use a network that accepts all shapes"
            )
        first = next(iter(self.sources.values()))
        self.input_shape = first.input_shape
        self.default_architecture = first.default_architecture

    def _joint_preprocessing(self, tables: Sequence[Table]) -> Any:
        targets = [
            replace(target, task=self._renamed[name].get(target.task, target.task))
            for name, table in zip(self.sources, tables, strict=True)
            for target in table.preprocessing.targets
        ]
        width = tables[0].width if len({table.width for table in tables}) == 1 else None
        return replace(tables[0].preprocessing, targets=tuple(targets), width=width)

    def make_split(self, split: SplitName) -> Mixture:
        """Return the samples of one split, one source after the other."""
        parts = {name: source.split(split) for name, source in self.sources.items()}
        return Mixture(parts, renamed=self._renamed)

    def sampling(
        self, samples: Split, batch_size: int, shuffle: bool, drop_last: bool, seed: int
    ) -> dict[str, Any]:
        """Mix the sources, or without shuffling read one after the other; no batch is left out."""
        assert isinstance(samples, Mixture)
        sources = samples.sources
        if not shuffle:
            in_order = [SequentialSampler(source) for source in sources.values()]
            return {"batch_sampler": InTurn(in_order, [batch_size] * len(in_order))}
        samplers = {name: RandomSampler(source) for name, source in sources.items()}
        how: Any = {"mixing": self.mixing, "batches": self.batches, "seed": seed}
        return {"batch_sampler": MixedBatches(samplers, batch_size, **how)}

    def complete_architecture(self, spec: SpecLike) -> SpecLike:
        """Return the architecture completed by the first source; all tables are encoded alike."""
        return next(iter(self.sources.values())).complete_architecture(spec)

    def only(self, tasks: Sequence[str]) -> Sources:
        """Return the sources of these tasks only, for a single-task network."""
        chosen = copy.copy(self)
        chosen.sources = {
            name: source
            for name, source in self.sources.items()
            if any(self._renamed[name].get(task.name, task.name) in tasks for task in source.tasks)
        }
        for split in ("train", "val", "test"):
            vars(chosen).pop(split, None)  # cached with all sources
        chosen.describe()
        return chosen


def _encode_together(tables: Sequence[Table]) -> None:
    """Encode the inputs of several tables in the same way; called before their splits are made.

    Numbers are standardized and words encoded by the training rows of all tables. A column that a table
    lacks, or that is its target, is missing in its rows.
    """
    rows = [table.frames["train"][table.input_columns] for table in tables]
    codes = set[str]().union(*(table.codes for table in tables))
    names = list(dict.fromkeys(name for table in tables for name in table.input_columns))
    taken: dict[str, ColumnType] = {}
    for name in names:
        found = [table.taken[name] for table in tables if name in table.input_columns]
        if len({how.kind for how in found}) > 1 and name not in codes:
            one, other, *_ = dict.fromkeys(f"{how.kind.rstrip('s')}s" for how in found)
            raise DataError(
                f"column {name!r} holds {one} in one source and {other} in another: "
                f"{', '.join(Path(table.file_name).name for table in tables)}; rename or ignore it in "
                f"one of them, or set categories=[{name}]"
            )
        formats = tuple(dict.fromkeys(one for how in found for one in how.formats))
        taken[name] = ColumnType(found[0].kind, found[0].note, found[0].decimal, formats)
    least = max(table.min_count for table in tables)
    joined = import_pandas().concat(rows, ignore_index=True)
    numbers, words, _ = fit_columns(joined, names, taken, codes, least)
    optional = [name for name in names if any(name not in frame for frame in rows)]
    for table in tables:
        table.encode_by(numbers, words, optional)
