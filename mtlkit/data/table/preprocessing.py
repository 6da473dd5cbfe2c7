"""From raw rows to the tensor that a network reads; fitted on the training rows, saved as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mtlkit.data import preprocessing
from mtlkit.data.base import DataError
from mtlkit.data.table.reading import (
    Frame,
    Reading,
    import_pandas,
    look_up,
    needs_text,
    numbers,
    words,
)
from mtlkit.data.table.targets import Target

_FORMAT = 1
_UNKNOWN, _MISSING = 0, 1
_FIRST = 2
_TRUTHS = {"True": 1, "False": 0}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its mean and deviation, and whether an input says that it is missing.

    With ``date``, the numbers are days since 1970, and words are read as dates.
    """

    name: str
    mean: float
    deviation: float
    indicator: bool
    date: bool = False

    @classmethod
    def fit(cls, column: Any, date: bool = False) -> NumberColumn | None:
        """Of the training rows; None for a column that says nothing."""
        values = numbers(column)
        known = values[~np.isnan(values)]
        missing = len(known) < len(values)
        deviation = float(known.std()) if len(known) else 0.0
        if deviation == 0 and (not missing or not len(known)):
            return None
        return cls(column.name, float(known.mean()), deviation or 1.0, missing, date)

    def encode(self, column: Any) -> tuple[Any, Any]:
        """Standardized values, 0 where missing, and where that is.

        Raises:
            DataError: for words that are no numbers.
        """
        is_words = not import_pandas().api.types.is_numeric_dtype(column)
        if is_words:  # earlier versions took truths for numbers
            column = column.astype(object).map(lambda cell: _TRUTHS.get(cell, cell))
        values = numbers(column, self.date)
        missing = np.isnan(values)
        if is_words and len(strange := column[missing & column.notna()]):
            what = "a date such as 2024-12-31" if self.date else "a number"
            shown = ", ".join(map(repr, strange.unique()[:3]))
            raise DataError(
                f"column {self.name!r} must hold {what}, but {len(strange)} of {len(column)} cells do "
                f"not, such as {shown}; correct them, or leave them empty where the value is not known"
            )
        return np.where(missing, 0.0, (values - self.mean) / self.deviation), missing


@dataclass(frozen=True)
class CategoryColumn:
    """A column of words. Index 0 is an unknown word, 1 a missing one, then come ``values``."""

    name: str
    values: Sequence[str]

    @classmethod
    def fit(cls, column: Any, least: int) -> CategoryColumn | None:
        """Of the training rows, without words that occur fewer than ``least`` times."""
        found = _codes(column)
        counts = found.value_counts()
        if (counts > 0).sum() + found.isna().any() < 2:
            return None
        return cls(column.name, tuple(sorted(counts[counts >= least].index)))

    @property
    def size(self) -> int:
        """Number of indices."""
        return len(self.values) + _FIRST

    def encode(self, column: Any) -> Any:
        """Indices of the words."""
        places = {_code(word): index for index, word in enumerate(self.values, start=_FIRST)}
        return look_up(_codes(column), places, _UNKNOWN, _MISSING)


def _code(word: str) -> str:
    """A whole number is one code, whether it is written as 3 or, where cells are empty, as 3.0."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", word)


def _codes(column: Any) -> Any:
    return words(column).map(_code, na_action="ignore")


@preprocessing.register_preprocessing("table")
@dataclass(frozen=True)
class Preprocessing(preprocessing.Preprocessing):
    """What was learned of the training rows, to be applied to any rows.

    The inputs of a row are its numbers, then the indicators of missing numbers, then the indices of its
    categories, in one tensor of floats; that is what the backbone ``table`` reads.

    Attributes:
        reading: how files are read.
        numbers: columns of numbers.
        categories: columns of words.
        targets: columns to predict; rows need not have them.
        width: how many columns a file has, where they have no names but their numbers.
        optional: columns that rows may lack, since one of several tables lacks them; they are then
            missing values.
    """

    batch_size: ClassVar[int] = 4096

    reading: Reading
    numbers: Sequence[NumberColumn]
    categories: Sequence[CategoryColumn]
    targets: Sequence[Target]
    width: int | None = None
    optional: Sequence[str] = ()

    @property
    def number_inputs(self) -> int:
        """How many inputs are numbers or indicators."""
        return len(self.numbers) + sum(column.indicator for column in self.numbers)

    @property
    def category_sizes(self) -> list[int]:
        """Number of indices of every category column."""
        return [column.size for column in self.categories]

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [c.name for c in self.numbers] + [c.name for c in self.categories]

    def read(self, path: str | Path) -> Frame:
        """The raw rows of a file.

        Raises:
            DataError: for a file that cannot be read, that lacks a column, or has words for numbers.
        """
        if not Path(path).is_file():
            raise DataError(f"there is no file {path}")
        text = [column.name for column in self.categories if needs_text(column.values)]
        text += [column.name for column in self.numbers if column.date]
        frame = self.reading.read(Path(path), text)
        if self.width is not None and len(frame.columns) != self.width:
            raise DataError(
                f"{path} has {len(frame.columns)} columns, and the table that was learned from "
                f"{self.width}. Without a header, columns are known by their place: keep all of them; "
                "those of the targets may be empty"
            )
        self._check_columns(frame, str(path))
        self.check_numbers(frame)
        return frame

    def check_numbers(self, frame: Frame) -> None:
        """Refuse words in columns of numbers, before anything is computed."""
        for column in self.numbers:
            if column.name in frame.columns:
                column.encode(frame[column.name])

    def inputs(self, rows: Frame | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Tensor:
        """(N, d) inputs of raw rows: a DataFrame, a mapping of columns, or a list of mappings.

        Raises:
            DataError: for a column that is not there, and for words that are no numbers.
        """
        pandas = import_pandas()
        frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(rows)
        frame = frame.rename(columns=str)
        self._check_columns(frame, "this table")
        frame = self.reading.clean(frame.reindex(columns=self.columns))
        amounts, indicators = [], []
        for column in self.numbers:
            values, missing = column.encode(frame[column.name])
            amounts.append(values)
            if column.indicator:
                indicators.append(missing)
        codes = [column.encode(frame[column.name]) for column in self.categories]
        return torch.from_numpy(np.stack([*amounts, *indicators, *codes], axis=1).astype(np.float32))

    def example(self, size: int) -> Tensor:
        """(size, d) inputs: normal numbers, and categories that occur."""
        drawn = torch.Generator().manual_seed(0)
        amounts = torch.randn(size, self.number_inputs, generator=drawn)
        codes = [torch.randint(n, (size, 1), generator=drawn) for n in self.category_sizes]
        return torch.cat([amounts, *codes], dim=1)

    def labels(self, frame: Frame) -> dict[str, Tensor]:
        """Targets of raw rows by task."""
        return {target.task: target.labels(frame) for target in self.targets}

    def to_json(self) -> str:
        """All of it as text; :meth:`from_json` reads it back."""
        content = {"kind": "table", "format": _FORMAT, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """What :meth:`to_json` wrote."""
        try:
            content = json.loads(text)
            found = content.pop("format")
            if found != _FORMAT:
                raise DataError(f"preprocessing of format {found}; this version reads {_FORMAT}")
            return cls(
                Reading(**content["reading"]),
                tuple(NumberColumn(**column) for column in content["numbers"]),
                tuple(CategoryColumn(**column) for column in content["categories"]),
                tuple(Target(**target) for target in content["targets"]),
                content["width"],
                tuple(content.get("optional", ())),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"this is not the preprocessing of a table: {error!r}") from None

    def _check_columns(self, frame: Frame, source: str) -> None:
        needed = [name for name in self.columns if name not in self.optional]
        lacking = [name for name in needed if name not in frame.columns]
        if lacking:
            raise DataError(
                f"the network reads columns that {source} lacks: {', '.join(map(repr, lacking))}; given "
                f"are: {', '.join(map(str, frame.columns))}"
            )
