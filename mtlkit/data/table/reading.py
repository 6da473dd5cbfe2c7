"""Read a file or a DataFrame as a table of numbers, dates and words; missing values are NaN."""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mtlkit.data.base import DataError, find_path
from mtlkit.data.table.cells import (
    ColumnType,
    dates,
    infer_column,
    is_date,
    is_number,
    numbers,
    possible_decimals,
    words,
)
from mtlkit.data.table.cells import import_pandas as import_pandas
from mtlkit.errors import MissingExtraError, SpecError, unknown_name

Frame: TypeAlias = Any
"""A pandas DataFrame; pandas is imported when it is used."""
Source: TypeAlias = Any
"""A path, or a DataFrame."""

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL")
_SEPARATORS = (",", ";", "\t", "|")
_PARQUET = (".parquet", ".pq")
_FORMATS = "CSV, gzipped CSV (.csv.gz) and Parquet (.parquet)"
_BLOCK = 1 << 24


def find_file(file: Any, data_dir: str | os.PathLike[str] | None) -> Source:
    """Return the path of a file (see :func:`find_path`), or a DataFrame unchanged.

    Raises:
        DataError: if the file does not exist.
        SpecError: for any other type.
    """
    if isinstance(file, import_pandas().DataFrame):
        return file
    if not isinstance(file, str | os.PathLike):
        raise SpecError(f"a table is a path or a pandas DataFrame, not {type(file).__name__}")
    try:
        return find_path(file, data_dir)
    except DataError as error:
        if str(file) == "DataFrame":
            raise DataError(f"{error}; it was a DataFrame: pass it again as file=...") from None
        raise


def name_of(source: Source) -> str:
    """Return the name of a source for messages: the path, or "the DataFrame"."""
    return str(source) if isinstance(source, os.PathLike) else "the DataFrame"


@dataclass(frozen=True)
class Reading:
    """Options for reading tables; saved with a run, for new rows.

    The options are those of :class:`~mtlkit.data.table.splitting.RowData`.
    """

    header: bool = True
    separator: str | None = None
    missing: Sequence[str] = MISSING
    encoding: str = "utf-8"
    decimal: str | None = None
    dayfirst: bool | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and len(self.separator.strip() or self.separator) != 1:
            raise SpecError(f"the separator of a table must be one character, not {self.separator!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise SpecError(
                f"unknown encoding {self.encoding!r} of a table; for example utf-8 or latin-1"
            ) from None

    def load(self, source: Source, text: Collection[str] = ()) -> Frame:
        """Return the cells of a CSV file (also gzipped), a Parquet file or a DataFrame.

        Args:
            source: path or DataFrame.
            text: columns to read as text, so that 0012 does not become 12.

        Raises:
            DataError: for an empty or damaged table, or an unknown format.
        """
        pandas = import_pandas()
        name = name_of(source)
        if not isinstance(source, os.PathLike):
            frame = source.copy(deep=False)
        elif Path(source).stat().st_size == 0:
            raise DataError(f"the table {name} is empty: the file has no bytes")
        else:
            frame = self._load_file(pandas, Path(source), text)
        if frame.empty:
            what = "no rows" if len(frame.columns) else "no columns"
            raise DataError(f"the table {name} is empty: it has {what}")
        if self.names_columns(source):
            frame.columns = [str(column).strip() for column in frame.columns]
            for column in frame.columns[frame.columns.duplicated()]:
                raise DataError(
                    f"the table {name} has two columns called {column!r}; rename one of them (spaces "
                    "around a name are ignored)"
                )
        else:
            frame.columns = [str(number) for number in range(1, len(frame.columns) + 1)]
        return frame.reset_index(drop=True)

    def read(self, source: Source, text: Collection[str] = ()) -> Frame:
        """Return the table as numbers, dates (UTC) and words; see :meth:`load`.

        ``attrs["taken"]`` has the :class:`~mtlkit.data.table.cells.ColumnType` of every column.
        """
        frame = self.load(source, text)
        columns, free = {}, []
        for name in frame.columns:
            column = frame[name]
            typed = is_number(column) or is_date(column)
            columns[name] = column if typed and name not in text else words(column, self.missing)
            if not typed and name not in text:
                free.append(name)
        # the decimal sign of one column decides for columns where both signs are possible
        signs = [possible_decimals(list(columns[name].cat.categories)) for name in free]
        amounts = [numbers(column) for column in columns.values() if is_number(column)]
        points = any((np.nan_to_num(values) % 1 != 0).any() for values in amounts)
        european = [","] in signs or (self._separator(source) == ";" and not points)
        taken = {}
        for name, column in columns.items():
            if name in text:
                taken[name] = ColumnType("words")
            else:
                columns[name], taken[name] = infer_column(
                    column, self.decimal, "," if european else ".", self.dayfirst
                )
        return self._typed(columns, taken)

    def read_like(self, source: Source, first: Frame) -> Frame:
        """Return a second table with the columns of the first, read in the same way."""
        taken: dict[str, ColumnType] = first.attrs["taken"]
        frame = self.load(source, [name for name, how in taken.items() if how.kind != "number"])
        lacking = [name for name in taken if name not in frame.columns]
        if lacking:
            listed = ", ".join(map(repr, lacking))
            raise DataError(f"the test file {name_of(source)} lacks the column(s) {listed}")
        columns = {}
        for name, how in taken.items():
            column = frame[name]
            if how.kind != "number" or not is_number(column):
                column = words(column, self.missing)
                found, here = column, how
                if how.kind == "number":
                    found, here = infer_column(column, how.decimal)
                elif how.kind == "date" and dates(column.dropna(), how.formats).notna().all():
                    found = dates(column, how.formats)
                column = found if here.kind == how.kind else column
            columns[name] = column
        return self._typed(columns, taken)

    def names_columns(self, source: Source) -> bool:
        """Return whether the columns of the source have names; else they are numbered."""
        is_text = isinstance(source, os.PathLike) and Path(source).suffix.lower() not in _PARQUET
        return self.header or not is_text

    def _typed(self, columns: dict[str, Any], taken: dict[str, ColumnType]) -> Frame:
        frame = import_pandas().DataFrame(columns)
        frame.attrs["taken"] = taken
        return frame

    def _load_file(self, pandas: Any, path: Path, text: Collection[str]) -> Frame:
        try:
            if path.suffix.lower() in _PARQUET:
                return pandas.read_parquet(path)
            return self._load_text(pandas, path, text)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not {self.encoding} text ({error.reason} at byte {error.start}); the "
                f"formats are {_FORMATS}. If it is CSV, set its encoding, for example encoding='latin-1'"
            ) from None
        except ImportError:
            raise MissingExtraError("pyarrow", "table", "a Parquet file") from None
        except Exception as error:  # pandas, pyarrow and zlib raise many kinds of errors
            reason = " ".join(str(error).split())
            hint = f"the formats are {_FORMATS}; set separator=... if the inferred one is wrong"
            raise DataError(f"cannot read the table {path}: {reason}; {hint}") from None

    def _load_text(self, pandas: Any, path: Path, text: Collection[str]) -> Frame:
        separator = self._separator(path)
        options = {
            "sep": separator.strip() or separator,
            "header": 0 if self.header else None,
            "index_col": False,
            "skipinitialspace": True,
            "encoding": "utf-8-sig" if self.encoding == "utf-8" else self.encoding,
            "keep_default_na": False,
            "na_values": list(self.missing),
            "low_memory": False,
        }
        with warnings.catch_warnings():
            # for rows that are longer than the header, pandas drops the last columns and warns
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            names = list(pandas.read_csv(path, nrows=0, **options).columns) if text else []
            called = [str(name).strip() if self.header else str(name + 1) for name in names]
            chosen = {name: str for name, word in zip(names, called, strict=True) if word in text}
            frame = pandas.read_csv(path, dtype=chosen, **options)
            # 00002 is a code, which pandas has turned into 2
            whole = [place for place, name in enumerate(frame) if _holds_integers(frame[name])]
            if whole and self._has_leading_zeros(path, separator):
                written = pandas.read_csv(path, dtype=str, usecols=whole, **options)
                for name in written:
                    if written[name].str.match(r"\s*0\d").any():
                        frame[name] = written[name]
            if self.header:  # pandas has renamed the second of two equal names
                options |= {"header": None, "na_filter": False}
                header = pandas.read_csv(path, nrows=1, dtype=str, **options).iloc[0]
                frame.columns = [name or old for name, old in zip(header, frame.columns, strict=True)]
        return frame

    def _separator(self, source: Source) -> str:
        if self.separator is not None:
            return self.separator
        if not isinstance(source, os.PathLike) or Path(source).suffix.lower() in _PARQUET:
            return ","
        with self._open(Path(source)) as file:
            return _find_separator(list(islice(file, 50)))

    def _has_leading_zeros(self, path: Path, separator: str) -> bool:
        """Return whether a cell may start with a zero before a digit, by a fast search of the file."""
        # patterns that start with a literal character are many times faster
        starts = {separator[0], "\n", '"', " "}
        patterns = [re.compile(re.escape(start) + "0[0-9]") for start in starts]
        with self._open(path) as file:
            last = "\n"
            while block := file.read(_BLOCK):
                if any(pattern.search(last + block) for pattern in patterns):
                    return True
                last = block[-2:]
        return False

    def _open(self, path: Path) -> Any:
        opened: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
        return opened(path, "rt", encoding=self.encoding, newline="")


@dataclass(frozen=True)
class ColumnFinder:
    """Finds a column by the name or number that the user gives."""

    source: str
    columns: Sequence[str]
    header: bool = True

    def __call__(self, given: Any) -> str:
        """Return the name of the column, or raise an error that lists the columns."""
        name = str(given)
        if name in self.columns:
            return name
        error = unknown_name(f"column of {self.source}", name, self.columns)
        hint = "If the first line is not a header, set header=False and count from 1"
        if not self.header:
            hint = "Without a header, columns are numbers, counted from 1"
        raise SpecError(f"{error}. {hint}")


def _holds_integers(column: Any) -> bool:
    types = import_pandas().api.types
    if types.is_integer_dtype(column):
        return True
    # integers with missing values are floats
    return bool(types.is_float_dtype(column) and (column.dropna() % 1 == 0).all())


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator with the most columns, the same number in all lines."""
    best, most = ",", 1
    for separator in _SEPARATORS:
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        sizes = {len(row) for row in rows if row}
        if len(sizes) == 1 and max(sizes) > most:
            best, most = separator, max(sizes)
    return best
