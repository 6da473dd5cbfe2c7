"""What a data set is: tasks, three splits, and where its files come from."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from mtlkit.config.annotations import Ge, Gt, Lt
from mtlkit.config.plugins import load_location, on_load
from mtlkit.config.registry import Registry, option_defaults
from mtlkit.config.spec import Part, SpecLike, format_spec, parse_spec
from mtlkit.data.collate import collate
from mtlkit.data.files import ENVIRONMENT as ENVIRONMENT
from mtlkit.data.files import DataDir, data_root, find_first
from mtlkit.data.files import DataError as DataError
from mtlkit.data.files import find_path as find_path
from mtlkit.data.randomness import generator, split_indices
from mtlkit.data.splits import Split as Split
from mtlkit.data.splits import TensorSplit as TensorSplit
from mtlkit.errors import SpecError
from mtlkit.tasks import Task

Count: TypeAlias = Annotated[int, Ge(1)]
Share: TypeAlias = Annotated[float, Gt(0), Lt(1)]
Seed: TypeAlias = Annotated[int, Ge(0)]
Indices: TypeAlias = NDArray[np.int64]
SplitName: TypeAlias = Literal["train", "val", "test"]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
_TABLES = (".csv", ".gz", ".tsv", ".parquet", ".pq")


class DataSet(ABC):
    """A data set: its tasks, its splits ``train``, ``val`` and ``test``, and where its files come from.

    A subclass states the class-level facts, fills :attr:`tasks` and :attr:`input_shape`, and makes a
    split on demand in :meth:`make_split`. Its options are the keyword-only arguments of ``__init__``.

    Args:
        data_dir: folder that holds the data set's own folder; None means ``$MTLKIT_DATA``.
        seed: decides which samples go where, and the augmentations.

    Example:
        >>> class Line(DataSet):
        ...     name, input_shape, tasks = "line", (1,), (Task.regression("y"),)
        ...
        ...     def make_split(self, split):
        ...         x = torch.linspace(0, 1, 8)[:, None]
        ...         return TensorSplit(x, {"y": 2 * x})
        >>> for inputs, targets in Line().loader("val", batch_size=4):
        ...     print(inputs.shape, targets["y"].shape)
        torch.Size([4, 1]) torch.Size([4, 1])
        torch.Size([4, 1]) torch.Size([4, 1])
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    folder: ClassVar[str | None] = None  # None: nothing is read from disk
    layout: ClassVar[str] = ""  # the files below ``folder``, as error messages show them
    needed: ClassVar[Sequence[Sequence[str]]] = ()  # files or folders, each under one of its names
    source: ClassVar[str] = ""  # where to get them
    origin: ClassVar[str] = "embedded"  # where the samples come from, without ``folder``
    default_architecture: str = ""
    minimum_steps: ClassVar[int] = 0  # of a run without epochs or steps; ten epochs may be too short
    preprocessing: Any = None
    """A :class:`~mtlkit.data.preprocessing.Preprocessing`, saved with a run; None for none."""

    tasks: tuple[Task, ...]
    input_shape: tuple[int, ...]

    def __init__(self, data_dir: DataDir = None, seed: int = 0) -> None:
        if seed < 0:
            raise SpecError(f"the seed of data set {self.name} must be 0 or more, not {seed}")
        self.seed = seed
        self.data_dir = data_dir
        self.spec = self.name

    @abstractmethod
    def make_split(self, split: SplitName) -> Split:
        """Build one split; called once."""

    def check_counts(self, **counts: int | None) -> None:
        """Refuse options below 1; None passes."""
        for option, count in counts.items():
            if count is not None and count < 1:
                raise SpecError(f"option {option} of {self.name} must be 1 or more, not {count}")

    def open_folder(self) -> Path:
        """Return the folder with this data set's files, after checking that all exist."""
        folder = self.find_files(self.data_dir)
        self.check_files(folder)
        return folder

    def draw_train(self, samples: Indices, most: int | None) -> Indices:
        """Draw at most so many of the training samples; None keeps all."""
        if most is None:
            return samples
        return generator(self.seed, self.name, "train").permutation(samples)[:most]

    def hold_out(self, split: SplitName, count: int, share: float, most: int | None = None) -> Indices:
        """Return which of ``count`` published training samples are for ``train`` or ``val``.

        Args:
            split: ``train`` or ``val``.
            count: number of published training samples.
            share: fraction of them that is held out for validation.
            most: at most this many training samples.
        """
        train, val = split_indices(count, [share], generator(self.seed, self.name, "split"))
        return self.draw_train(train, most) if split == "train" else val

    @cached_property
    def train(self) -> Split:
        """Samples to learn from."""
        return self.make_split("train")

    @cached_property
    def val(self) -> Split:
        """Samples to choose the checkpoint by."""
        return self.make_split("val")

    @cached_property
    def test(self) -> Split:
        """Samples to report on."""
        return self.make_split("test")

    @cached_property
    def checksum(self) -> int:
        """A number that changes with the samples of the data set, their inputs or targets.

        Of splits in memory all samples count, of others sixteen of each, evenly spaced.
        """
        value = 0
        for name in SPLITS:
            split: Any = self.split(name)
            if split is None:  # a data set may have nothing to test on
                continue
            value = crc32(str(len(split)).encode(), value)
            if isinstance(split, TensorSplit):
                samples: Any = [(split.inputs, split.targets)]
            else:
                places = np.linspace(0, len(split) - 1, min(len(split), 16)).astype(int)
                with split.at_epoch(0):
                    samples = [split[int(place)] for place in places]
            for tensor in _tensors(samples):
                held: Any = tensor.detach().cpu().contiguous().numpy()
                value = crc32(held, value)
        return value

    def split(self, name: str) -> Split:
        """Return the split of this name."""
        if name not in SPLITS:
            raise SpecError(f"no split {name!r}; the splits are {', '.join(SPLITS)}")
        chosen: Split = getattr(self, name)
        return chosen

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> DataLoader[Any]:
        """Return a data loader that indexes splits in memory a whole batch at a time.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            batch_size: samples per batch.
            shuffle: None means for ``"train"`` only.
            drop_last: leave out a last batch that is smaller.
            num_workers: processes that read; 0 is fastest for splits in memory.
            seed: order of the samples; None means the seed of the data set.
        """
        chosen = self.split(split)
        first = self.seed if seed is None else seed
        shuffled = split == "train" if shuffle is None else shuffle
        return DataLoader(
            chosen,
            **self.sampling(chosen, batch_size, shuffled, drop_last, first),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            # separate from the sampler's: seeds that a loader draws for its workers change no order
            generator=torch.Generator().manual_seed(first),
            collate_fn=collate,
        )

    def sampling(
        self, samples: Split, batch_size: int, shuffle: bool, drop_last: bool, seed: int
    ) -> dict[str, Any]:
        """Return the arguments of a data loader that say which samples make a batch."""
        order = torch.Generator().manual_seed(seed)
        sampler = RandomSampler(samples, generator=order) if shuffle else SequentialSampler(samples)
        return {"sampler": sampler, "batch_size": batch_size, "drop_last": drop_last}

    def complete_architecture(self, spec: SpecLike) -> SpecLike:
        """Return the architecture with what only the data set knows, such as the size of its inputs."""
        return spec

    def only(self, tasks: Sequence[str]) -> DataSet:
        """Return the data that these tasks need; all of it, unless tasks have data of their own."""
        return self

    @property
    def title(self) -> str:
        """What a heading calls the data set."""
        return self.spec

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in order."""
        return tuple(task.name for task in self.tasks)

    @classmethod
    def find_files(cls, data_dir: DataDir = None) -> Path:
        """Return the folder with this data set's files.

        Raises:
            DataError: where the folder is not given or does not exist.
        """
        root = data_root(data_dir)
        if root is None:
            raise DataError(
                f"data set {cls.name} reads files: give data_dir (--data-dir) or set {ENVIRONMENT}.\n"
                f"{cls.where_to_get()}"
            )
        path = root / str(cls.folder)
        if not path.is_dir():
            raise DataError(f"no folder {path} for data set {cls.name}.\n{cls.where_to_get()}")
        return path

    @classmethod
    def files_found(cls, data_dir: DataDir = None) -> bool | None:
        """Return whether the files are there; None where nothing is read from disk."""
        if cls.folder is None:
            return None
        try:
            cls.check_files(cls.find_files(data_dir))
        except DataError:
            return False
        return True

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Raise :class:`DataError` where a file that is needed is absent from ``folder``."""
        absent = [folder / names[0] for names in cls.needed if find_first(folder, names) is None]
        if absent or not any(folder.iterdir()):
            raise cls.missing(*(absent or [folder]))

    @classmethod
    def missing(cls, *paths: Path) -> DataError:
        """Make the error for files that are not there."""
        listing = ", ".join(map(str, paths))
        return DataError(f"data set {cls.name}: not found: {listing}.\n{cls.where_to_get()}")

    @classmethod
    def where_to_get(cls) -> str:
        """Say where to download the files and how to arrange them, for an error message."""
        return (
            f"Get the files from {cls.source} and lay them out as\n"
            f"  DATA_DIR/{cls.folder}/{cls.layout}\n"
            f"where DATA_DIR is the argument data_dir (--data-dir) or the variable {ENVIRONMENT}."
        )

    def __repr__(self) -> str:
        return f"<data set {self.spec}: {len(self.tasks)} tasks, seed {self.seed}>"


def _tensors(nested: Any) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples and mappings."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, Mapping):
        for value in nested.values():
            yield from _tensors(value)
    elif isinstance(nested, list | tuple):
        for value in nested:
            yield from _tensors(value)


datasets: Registry[Any] = Registry("data set", "mtlkit.data", "mtlkit.data")


def register_dataset(name: str, *, replace: bool = False) -> Callable[[Any], Any]:
    """Register a :class:`DataSet` subclass; packages use entry points in the group ``mtlkit.data``.

    Args:
        name: by which :func:`load_dataset` finds it.
        replace: whether another data set of this name may be replaced.

    Example:
        >>> from mtlkit.data.published.digit_pairs import MultiDigits
        >>> @register_dataset("few_digits", replace=True)
        ... class FewDigits(MultiDigits):
        ...     summary = "a handful of digits"
        >>> load_dataset("few_digits(train=8, val=4, test=4)").task_names
        ('left', 'right', 'parity', 'digit_sum', 'pixels')
    """
    return datasets.register(name, replace=replace)


@on_load
def _register_plugin(module: ModuleType) -> None:
    """Make the data sets of a plugin known by their classes' names, so that ``my.py:Cars`` is found."""
    for name, found in list(vars(module).items()):
        is_dataset = inspect.isclass(found) and issubclass(found, DataSet)
        is_own = is_dataset and found.__module__ == module.__name__ and not inspect.isabstract(found)
        if is_own and datasets.canonical(name) not in datasets.names():
            datasets.register(name)(found)


def list_datasets() -> list[str]:
    """Return the sorted names of all data sets, plugins included.

    >>> "table" in list_datasets()
    True
    """
    return datasets.names()


def missing_options(part: Part) -> list[str]:
    """Return the options that a data set cannot do without and that are not given."""
    defaults = option_defaults(datasets.get(part.name))
    empty = inspect.Parameter.empty
    return [name for name, value in defaults.items() if value is empty and name not in part.options]


def _without_frames(part: Part) -> Part:
    """Return the part with a word in the place of each DataFrame."""
    options = {k: "DataFrame" if hasattr(v, "columns") else v for k, v in part.options.items()}
    return Part(part.name, options, part.arguments)


def load_dataset(
    spec: SpecLike | DataSet,
    data_dir: DataDir = None,
    seed: int = 0,
    **overrides: Any,
) -> DataSet:
    """Return a data set from its config string, such as ``"multimnist(train=10000)"``.

    ``"my.py:Cars"`` is the class or registered name ``Cars`` of that Python file.

    Args:
        spec: name and options.
        data_dir: folder with the files; None means ``$MTLKIT_DATA``. Embedded data sets need none.
        seed: decides the splits, the pairs of digits, and the augmentations.
        overrides: options that replace those of the string, or complete them; a file may be a pandas
            DataFrame: ``load_dataset("table(targets=[income])", file=frame)``.

    Raises:
        SpecError: for an unknown name or option.
        DataError: for files that are missing or damaged; the message says where to get them.

    Example:
        >>> data = load_dataset("multidigits(train=64, val=16, test=16)", seed=1)
        >>> data.task_names
        ('left', 'right', 'parity', 'digit_sum', 'pixels')
        >>> image, targets = data.train[0]
        >>> image.shape
        torch.Size([1, 22, 22])
    """
    if isinstance(spec, DataSet):
        return spec
    if isinstance(spec, str) and Path(spec).suffix.lower() in _TABLES:
        raise SpecError(
            f"{spec!r} is a file, not a data set; a table is read by table(file={spec!r}, targets=...)"
        )
    parts = parse_spec(load_location(spec))
    if len(parts) != 1:
        raise SpecError(f"one data set at a time, not {len(parts)}: {format_spec(parts)}")
    plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in overrides.items()}
    part = datasets.override(parts, plain, of=parts[0].name)[0]
    factory = datasets.check(part)
    lacking = missing_options(part)
    if lacking:
        needed = ", ".join(f"{option}=..." for option in lacking)
        raise SpecError(f"data set {part.name} needs more options: {part.name}({needed})")
    made = factory(data_dir, seed, **part.options)
    if not isinstance(made, DataSet):
        raise SpecError(f"data set {part.name!r} is {type(made).__name__}; it must be a DataSet")
    made.spec = format_spec([_without_frames(part)])
    return made
