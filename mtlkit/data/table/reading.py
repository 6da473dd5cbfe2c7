"""From a file to a table with named columns, in which what is missing is NaN."""

from __future__ import annotations

import csv
import gzip
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import ENVIRONMENT, DataError
from mtlkit.errors import MissingExtraError, SpecError, unknown_name

Frame: TypeAlias = Any
"""A pandas DataFrame; pandas is imported where it is used."""

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None")
_SEPARATORS = (",", ";", "\t", "|")
_PARQUET = (".parquet", ".pq")
_FORMATS = "CSV, gzipped CSV (.csv.gz) and Parquet (.parquet)"
_MOSTLY = 0.9
# words that stay what they are if they are read as a number or a truth
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?|True|False")


def import_pandas() -> Any:
    """The module pandas, or an error that names the extra."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "table", "a table of rows") from None
    return pandas


def find_file(file: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The path of a file that is given from here, or from the folder of the data sets."""
    root = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT) or None
    places = [Path(file).expanduser()]
    if root is not None:
        places.append(Path(root).expanduser() / file)
    for place in places:
        if place.is_file():
            return place
    tried = " or ".join(str(place.absolute()) for place in places)
    raise DataError(f"there is no file {tried}")


@dataclass(frozen=True)
class Reading:
    """How files are read; it is saved with a run, so that new rows are read alike.

    Attributes:
        header: whether the first line names the columns; else they are "1", "2", ...
        separator: between the columns; None looks for one of ``, ; | tab``.
        missing: words that mean that a value is missing.
        encoding: of the text.
    """

    header: bool = True
    separator: str | None = None
    missing: Sequence[str] = MISSING
    encoding: str = "utf-8"

    def read(self, path: Path, text: Collection[str] = ()) -> Frame:
        """The table in a CSV (also gzipped) or Parquet file.

        Its ``attrs["dates"]`` names the columns that held dates, which are now days since 1970.

        Args:
            path: of the file.
            text: columns to read as they are written, where 0012 is not the number 12.

        Raises:
            DataError: for a file that is empty, damaged or in another format.
        """
        pandas = import_pandas()
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"the table {path} is empty: the file has no bytes")
        try:
            if path.suffix.lower() in _PARQUET:
                frame = pandas.read_parquet(path)
            else:
                frame = self._read_text(pandas, path, text)
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
        if frame.empty:
            what = "no rows" if len(frame.columns) else "no columns"
            raise DataError(f"the table {path} is empty: it has {what}")
        if self.names_columns(path):
            frame.columns = [str(name).strip() for name in frame.columns]
            for name in frame.columns[frame.columns.duplicated()]:
                raise DataError(
                    f"the table {path} has two columns called {name!r}; rename one of them (blanks "
                    "around a name do not count)"
                )
        else:
            frame.columns = [str(number) for number in range(1, len(frame.columns) + 1)]
        return self.clean(frame)

    def read_like(self, path: Path, first: Frame) -> Frame:
        """A second file, with the columns of the first at least."""
        frame = self.read(path, text_columns(first))
        lacking = [name for name in first.columns if name not in frame.columns]
        if lacking:
            raise DataError(f"the test file {path} lacks the column(s) {', '.join(map(repr, lacking))}")
        return frame

    def names_columns(self, path: Path) -> bool:
        """Whether the columns of the file have names; else they are known by their place."""
        return self.header or path.suffix.lower() in _PARQUET

    def clean(self, frame: Frame) -> Frame:
        """The same table, its words without blanks around them and what means "missing" as NaN."""
        pandas = import_pandas()
        types = pandas.api.types
        columns, dates = {}, []
        for name in frame.columns:
            column = frame[name]
            if types.is_datetime64_any_dtype(column):
                column = _days(column)
                dates.append(name)
            elif types.is_bool_dtype(column) or not types.is_numeric_dtype(column):
                # pandas reads True and False as truths only where no cell is empty; here they are words
                column = words(column, self.missing)
            columns[name] = column
        cleaned = pandas.DataFrame(columns)
        cleaned.attrs["dates"] = dates
        return cleaned

    def _read_text(self, pandas: Any, path: Path, text: Collection[str]) -> Frame:
        separator = self.separator
        if separator is None:
            separator = _find_separator(self._first_lines(path))
        options = {
            "sep": separator.strip() or separator,
            "header": 0 if self.header else None,
            "index_col": False,
            "skipinitialspace": True,
            "encoding": "utf-8-sig" if self.encoding == "utf-8" else self.encoding,
        }
        with warnings.catch_warnings():
            # rows that are longer than the header would lose their last columns with a warning
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            names = list(pandas.read_csv(path, nrows=0, **options).columns) if text else []
            called = [str(name).strip() if self.header else str(name + 1) for name in names]
            return pandas.read_csv(
                path,
                keep_default_na=False,
                na_values=list(self.missing),
                dtype={name: str for name, word in zip(names, called, strict=True) if word in text},
                low_memory=False,
                **options,
            )

    def _first_lines(self, path: Path) -> list[str]:
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with opened(path, "rt", encoding=self.encoding, newline="") as file:
            return list(islice(file, 50))


class ColumnFinder:
    """From what the user calls a column to its name."""

    def __init__(self, source: str, columns: Sequence[str], header: bool = True) -> None:
        self.source = source
        self.columns = columns
        self.header = header

    def __call__(self, given: Any) -> str:
        """The name, or an error that lists the columns."""
        name = str(given)
        if name in self.columns:
            return name
        error = unknown_name(f"column of {self.source}", name, self.columns)
        if self.header:
            raise SpecError(
                f"{error}. If the first line is no header, say header=False and count from 1"
            )
        raise SpecError(f"{error}. Without a header, columns are numbers, counted from 1")


def words(column: Any, missing: Iterable[str] = ()) -> Any:
    """A column of words as pandas' categories: 3.0 and "3 " are "3"; what is missing is NaN."""
    pandas = import_pandas()
    codes, values = pandas.factorize(column)
    none = frozenset(missing)
    kept: dict[str, int] = {}
    index = []
    for value in values:
        word = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        index.append(-1 if word in none else kept.setdefault(word, len(kept)))
    # factorize gives -1, the last entry, to what is missing
    codes = np.array([*index, -1])[codes]
    found = pandas.Categorical.from_codes(codes, categories=pandas.Index(list(kept), dtype=object))
    return pandas.Series(found, index=column.index, name=column.name)


def look_up(column: Any, places: Mapping[str, int], unknown: int, missing: int) -> NDArray[np.int64]:
    """The place of every word of a column, with places for words that are unknown or missing."""
    found = words(column)
    table = [places.get(word, unknown) for word in found.cat.categories]
    chosen: NDArray[np.int64] = np.array([*table, missing], dtype=np.int64)[found.cat.codes]
    return chosen


def needs_text(values: Iterable[str]) -> bool:
    """Whether some of these words would become others if a file's cells were read as numbers."""
    return not all(_PLAIN.fullmatch(word) for word in values)


def text_columns(frame: Frame) -> list[str]:
    """The columns that must be read as text in another file, to hold the same words there."""
    held = {name: frame[name] for name in frame.columns if frame[name].dtype == "category"}
    return [name for name, column in held.items() if needs_text(column.cat.categories)]


def stray_words(column: Any) -> list[str]:
    """The words in a column that are not numbers, where nearly all the others are."""
    counts = words(column).value_counts()
    strange = counts[np.isnan(numbers(counts.index.to_series())) & (counts > 0)]
    few = 0 < strange.sum() <= (1 - _MOSTLY) * counts.sum()
    return list(strange.index) if few else []


def _days(dates: Any) -> Any:
    """Dates as days since 1970."""
    pandas = import_pandas()
    return (dates - pandas.Timestamp(0, tz=dates.dt.tz)) / pandas.Timedelta(days=1)


def numbers(column: Any, dates: bool = False) -> NDArray[np.float64]:
    """A column's values as numbers; NaN where they are none or not finite.

    With ``dates``, words such as 2024-12-31 are days since 1970.
    """
    pandas = import_pandas()
    if not pandas.api.types.is_numeric_dtype(column):
        column = column.astype(object)
        if dates:
            column = _days(pandas.to_datetime(column, errors="coerce", utc=True, format="ISO8601"))
    found = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(found), found, np.nan)


def _find_separator(lines: Sequence[str]) -> str:
    """The separator that gives all lines the same number of columns, the most columns."""
    best, most = ",", 1
    for separator in _SEPARATORS:
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        sizes = {len(row) for row in rows if row}
        if len(sizes) == 1 and max(sizes) > most:
            best, most = separator, max(sizes)
    return best
