"""The base class of data sets: tasks, three splits, and where the files come from."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from mtlkit.config.annotations import Count as Count
from mtlkit.config.annotations import Ge, Gt, Lt
from mtlkit.config.plugins import load_location, on_load
from mtlkit.config.registry import Registry, check_options
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

Share: TypeAlias = Annotated[float, Gt(0), Lt(1)]
Seed: TypeAlias = Annotated[int, Ge(0)]
Indices: TypeAlias = NDArray[np.int64]
SplitName: TypeAlias = Literal["train", "val", "test"]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
_TABLES = (".csv", ".gz", ".tsv", ".parquet", ".pq")


class DataSet(ABC):
    """A data set: its tasks, its splits ``train``, ``val`` and ``test``, and where its files come from.

    A subclass sets the class attributes, :attr:`tasks` and :attr:`input_shape`, and makes a split on
    demand in :meth:`make_split`. Its options are the keyword-only arguments of ``__init__``.

    Args:
        data_dir: folder that contains the data set's folder; None means ``$MTLKIT_DATA``.
        seed: seed of the splits and the augmentations.

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
    folder: ClassVar[str | None] = None  # None: no files are read
    layout: ClassVar[str] = ""  # the files in ``folder``, for error messages
    needed: ClassVar[
        Sequence[Sequence[str]]
    ] = ()  # required files or folders, each with its possible names
    source: ClassVar[str] = ""  # where to download the files
    origin: ClassVar[str] = "embedded"  # where the samples come from if ``folder`` is None
    default_architecture: str = ""
    minimum_steps: ClassVar[int] = 0  # of a run that sets neither epochs nor steps
    preprocessing: Any = None
    """A :class:`~mtlkit.data.preprocessing.Preprocessing`, which is saved with a run; or None."""

    tasks: tuple[Task, ...]
    input_shape: tuple[int, ...]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Check the options, so that a class rejects what its config string rejects."""
        check_options(cls, _as_strings(options))
        return super().__new__(cls)

    def __init__(self, data_dir: DataDir = None, seed: int = 0) -> None:
        if seed < 0:
            raise SpecError(f"the seed of data set {self.name} must be 0 or more, not {seed}")
        self.seed = seed
        self.data_dir = data_dir
        self.spec = self.name

    @abstractmethod
    def make_split(self, split: SplitName) -> Split:
        """Make one split; called once."""

    def open_folder(self) -> Path:
        """Return the folder with this data set's files, after checking that all exist."""
        return self.find_files(self.data_dir)

    def draw_train(self, samples: Indices, most: int | None) -> Indices:
        """Draw at most ``most`` of the training samples; None keeps all."""
        if most is None:
            return samples
        return generator(self.seed, self.name, "train").permutation(samples)[:most]

    def hold_out(self, split: SplitName, count: int, share: float, most: int | None = None) -> Indices:
        """Return which of ``count`` published training samples are for ``train`` or for ``val``.

        ``share`` is the fraction for validation, ``most`` the largest number of training samples.
        """
        train, val = split_indices(count, [share], generator(self.seed, self.name, "split"))
        return self.draw_train(train, most) if split == "train" else val

    @cached_property
    def train(self) -> Split:
        """The training samples."""
        return self.make_split("train")

    @cached_property
    def val(self) -> Split:
        """The validation samples, which choose the checkpoint."""
        return self.make_split("val")

    @cached_property
    def test(self) -> Split:
        """The test samples."""
        return self.make_split("test")

    @cached_property
    def checksum(self) -> int:
        """A number that changes if inputs or targets of the data set change.

        It covers all samples of splits in memory, and sixteen evenly spaced samples of others.
        """
        value = 0
        for name in SPLITS:
            split: Any = self.split(name)
            if split is None:  # a data set may have no test samples
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
            raise SpecError(f"there is no split {name!r}; the splits are {', '.join(SPLITS)}")
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
        """Return a data loader, which indexes splits in memory a whole batch at a time.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            batch_size: samples per batch.
            shuffle: None shuffles ``"train"`` only.
            drop_last: leave out a smaller last batch.
            num_workers: processes that read samples; 0 is fastest for splits in memory.
            seed: seed of the order; None means the seed of the data set.
        """
        chosen = self.split(split)
        first = self.seed if seed is None else seed
        shuffled = split == "train" if shuffle is None else shuffle
        return DataLoader(
            chosen,
            **self.sampling(chosen, batch_size, shuffled, drop_last, first),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            # not the sampler's: the seeds that a loader draws for its workers must not change the order
            generator=torch.Generator().manual_seed(first),
            collate_fn=collate,
        )

    def sampling(
        self, samples: Split, batch_size: int, shuffle: bool, drop_last: bool, seed: int
    ) -> dict[str, Any]:
        """Return the arguments of a data loader that determine its batches."""
        order = torch.Generator().manual_seed(seed)
        sampler = RandomSampler(samples, generator=order) if shuffle else SequentialSampler(samples)
        return {"sampler": sampler, "batch_size": batch_size, "drop_last": drop_last}

    def complete_architecture(self, spec: SpecLike) -> SpecLike:
        """Return the architecture with options that the data set sets, such as the input size."""
        return spec

    def only(self, tasks: Sequence[str]) -> DataSet:
        """Return the data of these tasks; all data, unless tasks have their own."""
        return self

    @property
    def title(self) -> str:
        """The name of the data set in headings."""
        return self.spec

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in order."""
        return tuple(task.name for task in self.tasks)

    @classmethod
    def find_files(cls, data_dir: DataDir = None) -> Path:
        """Return the folder with this data set's files.

        Raises:
            DataError: if the folder is not given, or it or a required file does not exist.
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
        cls.check_files(path)
        return path

    @classmethod
    def files_found(cls, data_dir: DataDir = None) -> bool | None:
        """Return whether the files exist; None if the data set reads none."""
        if cls.folder is None:
            return None
        try:
            cls.find_files(data_dir)
        except DataError:
            return False
        return True

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Raise :class:`DataError` if a required file is missing from ``folder``."""
        absent = [folder / names[0] for names in cls.needed if find_first(folder, names) is None]
        if absent or not any(folder.iterdir()):
            raise cls.missing(*(absent or [folder]))

    @classmethod
    def missing(cls, *paths: Path) -> DataError:
        """Make the error for missing files."""
        listing = ", ".join(map(str, paths))
        return DataError(f"data set {cls.name}: not found: {listing}.\n{cls.where_to_get()}")

    @classmethod
    def where_to_get(cls) -> str:
        """Explain where to download the files and how to arrange them, for an error message."""
        return (
            f"Download the files from {cls.source} and arrange them as\n"
            f"  DATA_DIR/{cls.folder}/{cls.layout}\n"
            f"where DATA_DIR is the argument data_dir (--data-dir) or the variable ${ENVIRONMENT}."
        )

    def __repr__(self) -> str:
        return f"<data set {self.spec}: {len(self.tasks)} tasks, seed {self.seed}>"


def _as_strings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with paths as strings."""
    return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items()}


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
        name: name in config strings.
        replace: replace a data set of the same name instead of raising an error.

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
    """Register the data sets of a plugin under the names of their classes, for ``my.py:Cars``."""
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


def parse_dataset(spec: SpecLike) -> Part:
    """Read the config string of a data set, after loading the plugin that it names.

    Raises:
        SpecError: for a file of a table, or several parts.
    """
    if isinstance(spec, str) and Path(spec).suffix.lower() in _TABLES:
        raise SpecError(f"{spec!r} is a file, not a data set; write table(file={spec!r}, targets=...)")
    parts = parse_spec(load_location(spec))
    if len(parts) != 1:
        raise SpecError(f"expected one data set, not {len(parts)}: {format_spec(parts)}")
    return parts[0]


def load_dataset(
    spec: SpecLike | DataSet, data_dir: DataDir = None, seed: int = 0, **overrides: Any
) -> DataSet:
    """Return a data set from its config string, such as ``"multimnist(train=10000)"``.

    ``"my.py:Cars"`` is the class or registered name ``Cars`` of that Python file.

    Args:
        spec: name and options.
        data_dir: folder with the files; None means ``$MTLKIT_DATA``.
        seed: seed of the splits, the pairs of digits, and the augmentations.
        overrides: options that replace or complete those of the string; a file may be a pandas
            DataFrame: ``load_dataset("table(targets=[income])", file=frame)``.

    Raises:
        SpecError: for an unknown name or option.
        DataError: for missing or damaged files; the message says where to get them.

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
    part = parse_dataset(spec)
    part = datasets.override([part], _as_strings(overrides), of=part.name)[0]
    made = datasets.check(part)(data_dir, seed, **part.options)
    if not isinstance(made, DataSet):
        raise SpecError(f"data set {part.name!r} is {type(made).__name__}; it must be a DataSet")
    shown = {k: "DataFrame" if hasattr(v, "columns") else v for k, v in part.options.items()}
    made.spec = str(Part(part.name, shown, part.arguments))
    return made
