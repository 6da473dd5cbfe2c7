"""Which rows are for training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mtlkit.data.base import DataError, Indices, SplitName
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
    """The options of a data set that say which rows go where.

    Attributes:
        dataset: its name, for error messages.
        seed: of what is drawn.
        split: column that says train, val or test.
        time: column to split by.
        val_share: share of the rows for validation.
        test_share: share of the rows for test.
        train: at most this many training rows.
        test_seed: the rows for test are those which this seed has, where they are drawn.
    """

    dataset: str
    seed: int
    split: str | int | None = None
    time: str | int | None = None
    val_share: float = 0.2
    test_share: float = 0.2
    train: int | None = None
    test_seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.val_share < 1:
            raise SpecError(
                f"option val_share of {self.dataset} must be between 0 and 1, not {self.val_share}"
            )
        if not 0 < self.test_share < 1 - self.val_share:
            raise SpecError(
                f"option test_share of {self.dataset} must be above 0 and leave a part for training: "
                f"{self.test_share}"
            )
        for option, seed in (("split_seed", self.seed), ("test_seed", self.test_seed)):
            if seed is not None and seed < 0:
                raise SpecError(f"option {option} of {self.dataset} must be 0 or more, not {seed}")
        if self.split is not None and self.time is not None:
            raise SpecError(f"options split and time of {self.dataset} exclude each other")

    def columns(self, find: ColumnFinder) -> set[str]:
        """The columns that say where a row goes, so that they are no inputs."""
        return {find(column) for column in (self.split, self.time) if column is not None}

    def apply(
        self, frame: Frame, find: ColumnFinder, test: Frame | None = None
    ) -> dict[SplitName, Frame]:
        """The rows of train, val and test; ``test`` are rows for test from elsewhere."""
        shares: dict[SplitName, float] = {"val": self.val_share}
        if test is None:
            shares["test"] = self.test_share
        if self.time is not None:
            name = find(self.time)
            parts = split_by_time(frame[name], shares, name)
        elif self.split is not None:
            parts = _filled(split_by_column(frame, find(self.split)), shares, self.seed, self.test_seed)
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
    """At random; training takes what the shares of the others leave.

    With ``test_seed`` the rows for test are those which that seed has.
    """
    random = generator(seed, "table", "split")
    test_random = generator_or_none(test_seed if "test" in shares else None, "table", "split")
    try:
        parts = split_indices(count, list(shares.values()), random, test_random)
    except SpecError as error:
        raise DataError(str(error)) from None
    return dict(zip(("train", *shares), parts, strict=True))


def split_by_time(times: Any, shares: dict[SplitName, float], name: str) -> Parts:
    """By time: the last rows are for test, those before them for validation.

    Rows of the same moment stay together.
    """
    values = _as_times(times, name)
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


def split_by_column(frame: Frame, name: str) -> Parts:
    """As a column says: train, val or test."""
    words = frame[name].astype(object).map(lambda value: str(value).strip().lower())
    strange = sorted(set(words) - set(SPLIT_NAMES))
    if strange:
        raise DataError(
            f"column {name!r} is to say where a row belongs: train, val or test; it also holds "
            f"{', '.join(map(repr, strange[:6]))}"
        )
    chosen = words.map(SPLIT_NAMES).to_numpy()
    parts: Parts = {}
    for part in ("train", "val", "test"):
        rows = np.flatnonzero(chosen == part)
        if len(rows):
            parts[part] = rows
    if "train" not in parts:
        raise DataError(f"column {name!r} puts no row into train")
    return parts


def _filled(parts: Parts, shares: dict[SplitName, float], seed: int, test_seed: int | None) -> Parts:
    """Parts that the column does not name are drawn from the training rows."""
    lacking = {part: share for part, share in shares.items() if part not in parts}
    if not lacking:
        return parts
    train = parts["train"]
    drawn = split_by_share(len(train), lacking, seed, test_seed)
    return {**parts, **{part: train[rows] for part, rows in drawn.items()}}


def _as_times(column: Any, name: str) -> Any:
    if column.isna().any():
        raise DataError(
            f"column {name!r} is to order the rows by time, but lacks {column.isna().sum()} values"
        )
    if is_number(column):
        return numbers(column)
    if is_date(column):
        return days(column)
    raise DataError(
        f"column {name!r} cannot be read as times: its cells are words, such as {column.iloc[0]!r}; "
        "write dates as 2024-12-31"
    )
