"""Data sets of rows: how their table is read, and which rows are for training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mtlkit.data.base import SPLITS, Count, DataError, DataSet, Indices, Seed, Share, SplitName
from mtlkit.data.files import DataDir
from mtlkit.data.notes import Notices, listed
from mtlkit.data.randomness import generator, generator_or_none, split_indices
from mtlkit.data.table.cells import days, is_date, is_number, numbers
from mtlkit.data.table.reading import MISSING, ColumnFinder, Frame, Reading
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
    """Samples of one's own that are rows of a table, or that rows of a table name.

    Args:
        header: whether the first line names the columns.
        separator: between columns; None finds it.
        missing: words that mean that a value is missing.
        encoding: of a text file.
        decimal: what stands before the decimals of numbers, ``'.'`` or ``','``; None finds it.
        dayfirst: whether 05/09/2022 is in September; None looks at all cells of a column.
        split: column that says train, val or test.
        time: column to split by: the last rows are for test, those before them for validation.
        val_share: fraction of the rows for validation.
        test_share: fraction of the rows for test, where no second table is given for that.
        split_seed: decides which rows go where, instead of the seed of the run.
        test_seed: keeps the rows for test that this seed has, where they are drawn.
        train: at most this many training rows.
    """

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        header: bool = True,
        separator: str | None = None,
        missing: Sequence[str] = MISSING,
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

    def split_rows(
        self, frame: Frame, find: ColumnFinder, test: Frame | None = None
    ) -> dict[SplitName, Frame]:
        """Return the rows of train, val and test; ``test`` are rows for test from elsewhere."""
        shares = {part: share for part, share in self._shares.items() if part == "val" or test is None}
        if self.time_column is not None:
            name = find(self.time_column)
            parts = _split_by_time(frame[name], shares, name)
        elif self.split_column is not None:
            name = find(self.split_column)
            parts = _split_by_column(frame[name], name)
            # parts that the column does not name are drawn from the training rows
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
            raise SpecError(f"a test file is given, but column {name!r} has rows for test as well")
        frames = {part: frame.iloc[rows] for part, rows in parts.items()}
        return frames if test is None else {**frames, "test": test}


def split_by_share(
    count: int, shares: dict[SplitName, float], seed: int, test_seed: int | None = None
) -> Parts:
    """Split at random; training takes what the shares of the others leave.

    With ``test_seed`` the rows for test are those which that seed has.
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

    Rows of the same moment stay together.
    """
    if times.isna().any():
        raise DataError(
            f"column {name!r} is to order the rows by time, but lacks {times.isna().sum()} values"
        )
    if not is_number(times) and not is_date(times):
        raise DataError(
            f"column {name!r} cannot be read as times: its cells are words, such as {times.iloc[0]!r}; "
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
                f"column {name!r} has too few different times to split by; nothing is left before {part}"
            )
        parts[part] = np.sort(order[begin:end])
        end = begin
    return {"train": np.sort(order[:end]), **parts}


def _split_by_column(column: Any, name: str) -> Parts:
    """Split as a column says: train, val or test."""
    said = column.astype(object).map(lambda value: str(value).strip().lower())
    strange = sorted(set(said) - set(SPLIT_NAMES))
    if strange:
        raise DataError(
            f"column {name!r} is to say where a row belongs: train, val or test; it also holds "
            f"{listed(strange)}"
        )
    chosen = said.map(SPLIT_NAMES).to_numpy()
    parts: Parts = {part: np.flatnonzero(chosen == part) for part in SPLITS if part in chosen}
    if "train" not in parts:
        raise DataError(f"column {name!r} puts no row into train")
    return parts
