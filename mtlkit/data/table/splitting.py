"""Which rows are for training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mtlkit.data.base import SPLITS, DataError, Indices, SplitName
from mtlkit.data.notes import listed
from mtlkit.data.randomness import generator, generator_or_none, split_indices
from mtlkit.data.table.cells import days, is_date, is_number, numbers
from mtlkit.data.table.reading import ColumnFinder, Frame
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


@dataclass(frozen=True)
class Splitting:
    """The options of a data set that say which rows go where; see :class:`~mtlkit.data.table.Table`."""

    dataset: str
    seed: int
    split: str | int | None = None
    time: str | int | None = None
    val_share: float = 0.2
    test_share: float = 0.2
    train: int | None = None
    test_seed: int | None = None

    def __post_init__(self) -> None:
        if self.test_share >= 1 - self.val_share:
            raise SpecError(
                f"option test_share of {self.dataset} must leave a part for training: {self.test_share}"
            )
        if self.split is not None and self.time is not None:
            raise SpecError(f"options split and time of {self.dataset} exclude each other")

    def columns(self, find: ColumnFinder) -> set[str]:
        """Return the columns that say where a row goes, so that they are no inputs."""
        return {find(column) for column in (self.split, self.time) if column is not None}

    def apply(
        self, frame: Frame, find: ColumnFinder, test: Frame | None = None
    ) -> dict[SplitName, Frame]:
        """Return the rows of train, val and test; ``test`` are rows for test from elsewhere."""
        shares: dict[SplitName, float] = {"val": self.val_share}
        if test is None:
            shares["test"] = self.test_share
        if self.time is not None:
            name = find(self.time)
            parts = _split_by_time(frame[name], shares, name)
        elif self.split is not None:
            parts = _split_by_column(frame[find(self.split)], find(self.split))
            # parts that the column does not name are drawn from the training rows
            lacking = {part: share for part, share in shares.items() if part not in parts}
            if lacking:
                train = parts["train"]
                drawn = split_by_share(len(train), lacking, self.seed, self.test_seed)
                parts |= {part: train[rows] for part, rows in drawn.items()}
        else:
            parts = split_by_share(len(frame), shares, self.seed, self.test_seed)
        if self.train is not None and self.train < len(parts["train"]):
            order = generator(self.seed, "table", "train").permutation(parts["train"])
            parts["train"] = np.sort(order[: self.train])
        frames = {part: frame.iloc[rows] for part, rows in parts.items()}
        if test is not None:
            if "test" in frames:
                raise SpecError(
                    f"test_file is given, but column {self.split!r} has rows for test as well"
                )
            frames["test"] = test
        return frames


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
