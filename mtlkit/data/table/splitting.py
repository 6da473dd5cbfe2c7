"""Data sets of rows: how the table is read, and its split into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mtlkit.data.base import SPLITS, Count, DataError, DataSet, Indices, Seed, Share, SplitName
from mtlkit.data.files import DataDir
from mtlkit.data.notes import Notices, listed
from mtlkit.data.randomness import generator, generator_or_none, split_indices
from mtlkit.data.table.cells import days, is_date, is_number, numbers
from mtlkit.data.table.reading import (
    MISSING,
    ColumnFinder,
    Frame,
    Reading,
    Source,
    find_file,
    name_of,
)
from mtlkit.errors import SpecError

Parts = dict[SplitName, Indices]

SPLIT_NAMES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}


class RowData(DataSet):
    """A data set whose samples are rows of a table, or files that a table names.

    Args:
        header: whether the first line has the names of the columns.
        separator: separator of the columns; None infers it.
        missing: words that mean that a value is missing.
        encoding: encoding of a text file.
        decimal: decimal sign, ``'.'`` or ``','``; None infers it.
        dayfirst: whether 05/09/2022 is in September; None infers it from all cells of a column.
        split: column with train, val or test.
        time: column to split by: the last rows are for test, those before them for validation.
        val_share: fraction of the rows for validation.
        test_share: fraction of the rows for test, unless there is a second table for it.
        split_seed: seed of the split; None means the seed of the run.
        test_seed: seed of the test rows; None means that of the split.
        train: largest number of training rows.
    """

    file_name: str
    """The file of the rows, ``the DataFrame``, or the folder of the images."""

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        header: bool = True,
        separator: str | None = None,
        missing: Sequence[Any] = MISSING,
        encoding: str = "utf-8",
        decimal: Literal[".", ","] | None = None,
        dayfirst: bool | None = None,
        split: str | int | None = None,
        time: str | int | None = None,
        val_share: Share = 0.2,
        test_share: Share = 0.2,
        split_seed: Seed | None = None,
        test_seed: Seed | None = None,
        train: Count | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        if test_share >= 1 - val_share:
            raise SpecError(f"option test_share of {self.name} leaves nothing to train on: {test_share}")
        if split is not None and time is not None:
            raise SpecError(f"options split and time of {self.name} exclude each other")
        self.reading = Reading(header, separator, tuple(map(str, missing)), encoding, decimal, dayfirst)
        self.notices = Notices(self.name)
        self.split_column = split
        self.time_column = time
        self._shares: dict[SplitName, float] = {"val": val_share, "test": test_share}
        self._seeds = (seed if split_seed is None else split_seed, test_seed)
        self._most = train

    @property
    def title(self) -> str:
        """The name of the file or folder and the number of targets."""
        name = "DataFrame" if self.file_name == "the DataFrame" else Path(self.file_name).name
        return f"{name}, {len(self.tasks)} target{'s' if len(self.tasks) > 1 else ''}"

    def read_rows(
        self, source: Source, text: Collection[str], test_file: Any
    ) -> tuple[Frame, Frame | None, ColumnFinder]:
        """Return the rows of a table, those of a test file if there is one, and its columns by name.

        ``text`` are columns whose cells are words, also where they look like numbers.
        """
        frame = self.reading.read(source, text)
        test = None
        if test_file is not None:
            test = self.reading.read_like(find_file(test_file, self.data_dir), frame)
        name = Path(name_of(source)).name
        return frame, test, ColumnFinder(name, list(frame.columns), self.reading.header)

    def split_rows(
        self, frame: Frame, find: ColumnFinder, test: Frame | None = None
    ) -> dict[SplitName, Frame]:
        """Return the rows of train, val and test; ``test`` has the rows of a test file."""
        shares = {part: share for part, share in self._shares.items() if part == "val" or test is None}
        if self.time_column is not None:
            name = find(self.time_column)
            parts = _split_by_time(frame[name], shares, name)
        elif self.split_column is not None:
            name = find(self.split_column)
            parts = _split_by_column(frame[name], name)
            # splits that the column does not have are drawn from the training rows
            lacking = {part: share for part, share in shares.items() if part not in parts}
            if lacking:
                train = parts["train"]
                drawn = split_by_share(len(train), lacking, *self._seeds)
                parts |= {part: train[rows] for part, rows in drawn.items()}
        else:
            parts = split_by_share(len(frame), shares, *self._seeds)
        if self._most is not None and self._most < len(parts["train"]):
            order = generator(self._seeds[0], "table", "train").permutation(parts["train"])
            parts["train"] = np.sort(order[: self._most])
        if test is not None and "test" in parts:
            raise SpecError(f"there is a test file, but column {name!r} also has test rows")
        frames = {part: frame.iloc[rows] for part, rows in parts.items()}
        return frames if test is None else {**frames, "test": test}


def split_by_share(
    count: int, shares: dict[SplitName, float], seed: int, test_seed: int | None = None
) -> Parts:
    """Split at random; the rest of the rows are for training.

    With ``test_seed``, only that seed determines the test rows.
    """
    random = generator(seed, "table", "split")
    test_random = generator_or_none(test_seed if "test" in shares else None, "table", "split")
    try:
        parts = split_indices(count, list(shares.values()), random, test_random)
    except SpecError as error:
        raise DataError(str(error)) from None
    return dict(zip(("train", *shares), parts, strict=True))


def _split_by_time(times: Any, shares: dict[SplitName, float], name: str) -> Parts:
    """Split by time: the last rows are for test, those before them for validation.

    Rows with the same time stay together.
    """
    if times.isna().any():
        raise DataError(
            f"column {name!r} must have a time in every row; {times.isna().sum()} are missing"
        )
    if not is_number(times) and not is_date(times):
        raise DataError(
            f"column {name!r} must hold times, but its cells are words, such as {times.iloc[0]!r}; "
            "write dates as 2024-12-31"
        )
    values = numbers(times) if is_number(times) else days(times)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    parts: Parts = {}
    end = len(order)
    for part in ("test", "val"):
        if part not in shares:
            continue
        begin = end - max(1, round(shares[part] * len(order)))
        if begin > 0:
            begin = int(np.searchsorted(ordered, ordered[begin], side="left"))
        if begin <= 0:
            raise DataError(
                f"column {name!r} has too few different times to split; none is before {part}"
            )
        parts[part] = np.sort(order[begin:end])
        end = begin
    return {"train": np.sort(order[:end]), **parts}


def _split_by_column(column: Any, name: str) -> Parts:
    """Split by a column with train, val or test."""
    splits = column.astype(object).fillna("empty cells").map(lambda value: str(value).strip().lower())
    invalid = sorted(set(splits) - set(SPLIT_NAMES))
    if invalid:
        raise DataError(f"column {name!r} must hold train, val or test; it also holds {listed(invalid)}")
    chosen = splits.map(SPLIT_NAMES).to_numpy()
    parts: Parts = {part: np.flatnonzero(chosen == part) for part in SPLITS if part in chosen}
    if "train" not in parts:
        raise DataError(f"column {name!r} puts no row into train")
    return parts
