"""Input columns: encoders of numbers, dates and words, fitted on the training rows only."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import DataError
from mtlkit.data.table.cells import (
    NOTHING,
    ColumnType,
    days,
    is_date,
    is_number,
    look_up,
    mean_and_deviation,
    numbers,
    words,
)
from mtlkit.data.table.reading import Frame

_UNKNOWN, _MISSING, _FIRST = 0, 1, 2
_MANY_WORDS = 50
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
_PARTS = {"year": "time of year", "week": "day of the week", "day": "time of day"}
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, which are standardized.

    Attributes:
        name: name of the column.
        mean: mean of the training rows.
        deviation: standard deviation of the training rows.
        indicator: whether one more input is 1 for missing values.
        decimal: decimal sign of numbers written as text.
    """

    wanted: ClassVar[str] = "a number"

    name: str
    mean: float
    deviation: float
    indicator: bool
    decimal: str = "."

    @classmethod
    def fit(cls, column: Any, how: ColumnType) -> NumberColumn | None:
        """Fit the training rows; None for a constant column."""
        values = numbers(column, how.decimal)
        known = values[~np.isnan(values)]
        missing = len(known) < len(values)
        constant = not len(known) or known.min() == known.max()
        if constant and (not missing or not len(known)):
            return None
        mean, deviation = mean_and_deviation(known)
        return cls(str(column.name), mean, 1.0 if constant else deviation, missing, how.decimal)

    @property
    def size(self) -> int:
        """Number of inputs without the indicator."""
        return 1

    def values(self, column: Any) -> Floats:
        """Return the column as floats; NaN for missing values and words."""
        return numbers(column, self.decimal)

    def encode(self, column: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Return inputs (N, size), 0 for missing values, and the mask of missing values.

        Raises:
            DataError: for words that are not numbers, or not dates.
        """
        values = self.values(column)
        missing = np.isnan(values)
        if not is_number(column) and not is_date(column):
            held = words(column, (NOTHING,))
            invalid = held[missing & held.notna().to_numpy()]
            if len(invalid):
                shown = ", ".join(map(repr, invalid.unique()[:3]))
                raise DataError(
                    f"column {self.name!r} must hold {self.wanted}, but {len(invalid)} of {len(column)} "
                    f"cells do not, such as {shown}; correct them, or leave unknown values empty"
                )
        return np.where(missing[:, None], 0.0, self._features(values)), missing

    def _features(self, values: Floats) -> Floats:
        return (values / self.deviation - self.mean / self.deviation)[:, None]


@dataclass(frozen=True)
class DateColumn(NumberColumn):
    """A column of dates: the day as a number, and sine and cosine of its cycles.

    Attributes:
        formats: formats of dates written as text; ISO 8601 is always accepted.
        cycles: those of ``year``, ``week`` and ``day`` that the training rows cover.
    """

    wanted: ClassVar[str] = "a date such as 2024-12-31"

    # without defaults, so that saved columns of numbers are not read as dates
    formats: Sequence[str] = field(kw_only=True)
    cycles: Sequence[str] = field(kw_only=True)

    @classmethod
    def fit(cls, column: Any, how: ColumnType) -> DateColumn | None:
        """Fit the training rows; None for a constant column."""
        values = days(column)
        found = NumberColumn.fit(type(column)(values, name=column.name), how)
        if found is None:
            return None
        known = values[~np.isnan(values)]
        cycles = []
        for cycle, period in _CYCLES.items():
            turns = known / period
            # at least half a cycle, and more than one phase
            if np.ptp(turns) >= 0.5 and len(np.unique(np.round(turns % 1, 6) % 1)) > 1:
                cycles.append(cycle)
        return cls(**asdict(found), formats=how.formats, cycles=tuple(cycles))

    @property
    def size(self) -> int:
        """Number of inputs without the indicator."""
        return 1 + 2 * len(self.cycles)

    @property
    def note(self) -> str:
        """A description of the inputs."""
        parts = ["the day as a number", *(_PARTS[cycle] for cycle in self.cycles)]
        return "inputs: " + ", ".join(parts)

    def values(self, column: Any) -> Floats:
        """Return the column as days since 1970; NaN for missing values and other words."""
        return days(column, self.formats)

    def _features(self, values: Floats) -> Floats:
        turns = [2 * np.pi * (values / _CYCLES[cycle]) for cycle in self.cycles]
        waves = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
        return np.stack([(values - self.mean) / self.deviation, *waves], axis=1)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of words. Code 0 is an unknown word, 1 a missing one, and ``values`` follow."""

    name: str
    values: Sequence[str]

    @classmethod
    def fit(cls, column: Any, least: int) -> CategoryColumn | None:
        """Fit the training rows, without words that occur fewer than ``least`` times."""
        found = _codes(column)
        counts = found.value_counts()
        if (counts > 0).sum() + found.isna().any() < 2:
            return None
        return cls(str(column.name), tuple(sorted(counts[counts >= least].index)))

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.values) + _FIRST

    def encode(self, column: Any, missing: Collection[str] = ()) -> NDArray[np.int64]:
        """Return the codes of the words."""
        places = {_code(word): index for index, word in enumerate(self.values, start=_FIRST)}
        return look_up(_codes(words(column, missing)), places, _UNKNOWN, _MISSING)


@dataclass(frozen=True)
class InputColumn:
    """Use of a column, for display.

    Attributes:
        name: name of the column.
        taken: number, date, categories, or left out.
        missing: number of training rows without a value.
        distinct: number of different values in the training rows.
        note: how it was read, and why it was left out.
        rare: number of rare words, which share the code of unknown words.
    """

    name: str
    taken: str
    missing: int
    distinct: int
    note: str = ""
    rare: int = 0


def fit_columns(
    frame: Frame,
    names: Sequence[str],
    taken: Mapping[str, ColumnType],
    codes: Collection[str],
    least: int,
) -> tuple[tuple[NumberColumn, ...], tuple[CategoryColumn, ...], list[InputColumn]]:
    """Fit encoders of these columns on the training rows, and describe how each is used.

    Numbers in the columns ``codes`` are categories; words that occur less often than ``least`` times are
    encoded as unknown.
    """
    amounts: list[NumberColumn] = []
    categories: list[CategoryColumn] = []
    described = []
    for name in names:
        column, how = frame[name], taken[name]
        note, reason = how.note, "it is the same in all training rows"
        found: NumberColumn | CategoryColumn | None
        distinct = int(words(column).nunique()) if column.dtype == object else int(column.nunique())
        if is_date(column) and name not in codes:
            found = DateColumn.fit(column, how)
            note = f"{note}; {found.note}" if isinstance(found, DateColumn) else note
        elif is_number(column) and name not in codes:
            found = NumberColumn.fit(column, how)
        elif distinct > max(_MANY_WORDS, len(column) / 2):
            found, reason = None, "most rows have different words, so nothing can be learned"
        else:
            found = CategoryColumn.fit(column, least)
            if found and not found.values and column.notna().all():
                found, reason = None, f"no word occurs {least} times in the training rows"
        kind, rare = "left out", 0
        if isinstance(found, CategoryColumn):
            categories.append(found)
            kind = "categories"
            rare = max(0, distinct - len(found.values))
        elif found is not None:
            amounts.append(found)
            kind = "date" if isinstance(found, DateColumn) else "number"
        elif column.isna().all():
            reason = "it is empty in the training rows"
        if found is None:
            note = f"{reason}; {note}" if note else reason
        described.append(InputColumn(name, kind, int(column.isna().sum()), distinct, note, rare))
    return tuple(amounts), tuple(categories), described


def _code(word: str) -> str:
    """Return the same code for an integer written as 3 or, in columns with empty cells, as 3.0."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", word)


def _codes(column: Any) -> Any:
    return words(column).map(_code, na_action="ignore")
