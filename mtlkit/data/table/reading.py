"""From a file or a DataFrame to a table of numbers, dates and words, in which what is missing is NaN."""

from __future__ import annotations

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
    Taken,
    dates,
    is_date,
    is_number,
    numbers,
    possible_decimals,
    understand,
    words,
)
from mtlkit.data.table.cells import import_pandas as import_pandas  # deployment takes it from here
from mtlkit.errors import MissingExtraError, SpecError, unknown_name

Frame: TypeAlias = Any
"""A pandas DataFrame; pandas is imported where it is used."""
Source: TypeAlias = Any
"""A path, or a DataFrame."""

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL")
_SEPARATORS = (",", ";", "\t", "|")
_PARQUET = (".parquet", ".pq")
_FORMATS = "CSV, gzipped CSV (.csv.gz) and Parquet (.parquet)"
_BLOCK = 1 << 24


def find_file(file: Any, data_dir: str | os.PathLike[str] | None) -> Source:
    """Return the path of a file, given from here or from the folder of the data sets; a DataFrame as is.

    Raises:
        DataError: where there is no such file.
        SpecError: for what is neither.
    """
    if isinstance(file, import_pandas().DataFrame):
        return file
    if not isinstance(file, str | os.PathLike):
        raise SpecError(f"a table is a path or a pandas DataFrame, not {type(file).__name__}")
    try:
        return find_path(file, data_dir)
    except DataError as error:
        if str(file) == "DataFrame":
            raise DataError(f"{error}; it was a DataFrame: pass it again, file=...") from None
        raise


def name_of(source: Source) -> str:
    """Return what messages call a source: the path, or "the DataFrame"."""
    return str(source) if isinstance(source, os.PathLike) else "the DataFrame"


@dataclass(frozen=True)
class Reading:
    """How tables are read; it is saved with a run, so that new rows are read alike.

    The options are those of :class:`~mtlkit.data.table.splitting.RowData`.
    """

    header: bool = True
    separator: str | None = None
    missing: Sequence[str] = MISSING
    encoding: str = "utf-8"
    decimal: str | None = None
    dayfirst: bool | None = None

    def load(self, source: Source, text: Collection[str] = ()) -> Frame:
        """Return the cells of a CSV file (also gzipped), a Parquet file or a DataFrame, columns named.

        Args:
            source: path or DataFrame.
            text: columns to read as they are written, where 0012 is not the number 12.

        Raises:
            DataError: for a table that is empty, damaged or in another format.
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
                    f"the table {name} has two columns called {column!r}; rename one of them (blanks "
                    "around a name do not count)"
                )
        else:
            frame.columns = [str(number) for number in range(1, len(frame.columns) + 1)]
        return frame.reset_index(drop=True)

    def read(self, source: Source, text: Collection[str] = ()) -> Frame:
        """Return the table as numbers, dates (UTC) and words; see :meth:`load`.

        ``attrs["taken"]`` has a :class:`~mtlkit.data.table.cells.Taken` for every column.
        """
        frame = self.load(source, text)
        columns, free = {}, []
        for name in frame.columns:
            column = frame[name]
            if name in text:
                columns[name] = words(column, self.missing)
            elif is_number(column) or is_date(column):
                columns[name] = column
            else:
                columns[name] = words(column, self.missing)
                free.append(name)
        # what one column says about the file's decimal sign decides in columns that say nothing
        signs = [possible_decimals(list(columns[name].cat.categories)) for name in free]
        amounts = [numbers(column) for column in columns.values() if is_number(column)]
        points = any((np.nan_to_num(values) % 1 != 0).any() for values in amounts)
        european = [","] in signs or (self._separator(source) == ";" and not points)
        taken = {}
        for name, column in columns.items():
            if name in text:
                taken[name] = Taken("words")
            else:
                columns[name], taken[name] = understand(
                    column, self.decimal, "," if european else ".", self.dayfirst
                )
        return self._typed(columns, taken)

    def read_like(self, source: Source, first: Frame) -> Frame:
        """Return a second table, which has the columns of the first at least, read like them."""
        taken: dict[str, Taken] = first.attrs["taken"]
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
                    found, here = understand(column, how.decimal)
                elif how.kind == "date" and dates(column.dropna(), how.formats).notna().all():
                    found = dates(column, how.formats)
                column = found if here.kind == how.kind else column
            columns[name] = column
        return self._typed(columns, taken)

    def names_columns(self, source: Source) -> bool:
        """Return whether the columns of the source have names; else they are known by their place."""
        is_text = isinstance(source, os.PathLike) and Path(source).suffix.lower() not in _PARQUET
        return self.header or not is_text

    def _typed(self, columns: dict[str, Any], taken: dict[str, Taken]) -> Frame:
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
                f"{path} is not {self.encoding} text ({error.reason} at byte {error.start}); read are "
                f"{_FORMATS}. If it is CSV, give its encoding, for example encoding='latin-1'"
            ) from None
        except ImportError:
            raise MissingExtraError("pyarrow", "table", "a Parquet file") from None
        except Exception as error:  # pandas, pyarrow and zlib raise many kinds for damaged files
            reason = " ".join(str(error).split())
            hint = f"read are {_FORMATS}; give separator=... if it was not found"
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
            # rows that are longer than the header would lose their last columns with a warning
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            names = list(pandas.read_csv(path, nrows=0, **options).columns) if text else []
            called = [str(name).strip() if self.header else str(name + 1) for name in names]
            chosen = {name: str for name, word in zip(names, called, strict=True) if word in text}
            frame = pandas.read_csv(path, dtype=chosen, **options)
            # 00002 is a code; pandas has made 2 of it
            whole = [place for place, name in enumerate(frame) if _holds_integers(frame[name])]
            if whole and self._has_leading_zeros(path, separator):
                written = pandas.read_csv(path, dtype=str, usecols=whole, **options)
                for name in written:
                    if written[name].str.match(r"\s*0\d").any():
                        frame[name] = written[name]
        return frame

    def _separator(self, source: Source) -> str:
        if self.separator is not None:
            return self.separator
        if not isinstance(source, os.PathLike) or Path(source).suffix.lower() in _PARQUET:
            return ","
        with self._open(Path(source)) as file:
            return _find_separator(list(islice(file, 50)))

    def _has_leading_zeros(self, path: Path, separator: str) -> bool:
        """Return whether a cell may begin with a zero before a digit; a quick look at the whole file."""
        # patterns that begin with a letter of their own are searched for many times faster
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
    """From what the user calls a column to its name."""

    source: str
    columns: Sequence[str]
    header: bool = True

    def __call__(self, given: Any) -> str:
        """Return the name, or raise an error that lists the columns."""
        name = str(given)
        if name in self.columns:
            return name
        error = unknown_name(f"column of {self.source}", name, self.columns)
        hint = "If the first line is no header, say header=False and count from 1"
        if not self.header:
            hint = "Without a header, columns are numbers, counted from 1"
        raise SpecError(f"{error}. {hint}")


def _holds_integers(column: Any) -> bool:
    types = import_pandas().api.types
    if types.is_integer_dtype(column):
        return True
    # gaps make floats of integers
    return bool(types.is_float_dtype(column) and (column.dropna() % 1 == 0).all())


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator that gives all lines the same number of columns, the most columns."""
    best, most = ",", 1
    for separator in _SEPARATORS:
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        sizes = {len(row) for row in rows if row}
        if len(sizes) == 1 and max(sizes) > most:
            best, most = separator, max(sizes)
    return best
