"""Which rows are for training, validation and test."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtlkit.data.base import DataError, Indices, SplitName
from mtlkit.data.randomness import generator, split_indices, split_with_test
from mtlkit.data.table.reading import Frame, import_pandas
from mtlkit.errors import SpecError

__all__ = ["split_by_column", "split_by_share", "split_by_time"]

Parts = dict[SplitName, Indices]

_NAMES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}


def split_by_share(
    count: int, shares: dict[SplitName, float], seed: int, test_seed: int | None = None
) -> Parts:
    """At random; training takes what the shares of the others leave.

    With ``test_seed`` the rows for test are those which that seed has.
    """
    sizes, random = list(shares.values()), generator(seed, "table", "split")
    try:
        if test_seed is not None and "test" in shares:
            parts = split_with_test(count, sizes, random, generator(test_seed, "table", "split"))
        else:
            parts = split_indices(count, sizes, random)
    except SpecError as error:
        raise DataError(f"data set table: {error}") from None
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
                f"data set table: column {name!r} has too few different times to split by; "
                f"nothing is left before {part}"
            )
        parts[part] = np.sort(order[begin:end])
        end = begin
    return {"train": np.sort(order[:end]), **parts}


def split_by_column(frame: Frame, name: str) -> Parts:
    """As a column says: train, val or test."""
    words = frame[name].astype(object).map(lambda value: str(value).strip().lower())
    strange = sorted(set(words) - set(_NAMES))
    if strange:
        raise DataError(
            f"column {name!r} is to say where a row belongs: train, val or test; it also holds "
            f"{', '.join(map(repr, strange[:6]))}"
        )
    chosen = words.map(_NAMES).to_numpy()
    parts: Parts = {}
    for part in ("train", "val", "test"):
        rows = np.flatnonzero(chosen == part)
        if len(rows):
            parts[part] = rows
    if "train" not in parts:
        raise DataError(f"column {name!r} puts no row into train")
    return parts


def _as_times(column: Any, name: str) -> Any:
    pandas = import_pandas()
    if column.isna().any():
        raise DataError(
            f"column {name!r} is to order the rows by time, but lacks {column.isna().sum()} values"
        )
    if pandas.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64)
    try:
        return pandas.to_datetime(column.astype(object), utc=True).astype("int64").to_numpy()
    except (ValueError, TypeError) as error:
        raise DataError(f"column {name!r} cannot be read as times: {error}") from None
