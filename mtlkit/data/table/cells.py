"""The types of columns: numbers, dates or words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mtlkit.config.extras import import_extra

Kind: TypeAlias = Literal["number", "date", "words"]

NOTHING = "None"
"""A category among words, but a missing value among numbers and dates."""
ISO = "ISO8601"
_MOSTLY = 0.9
_UNIT = "[%$€£¥]"
_GROUPING = {".": r"[,'’ \u00a0\u202f]", ",": r"[.'’ \u00a0\u202f]"}
_NUMBER = {
    decimal: re.compile(
        rf"(?P<sign>[-+−]?)(?:\s*(?P<before>{_UNIT})\s*)?"
        rf"(?P<whole>\d{{1,3}}(?:{grouping}\d{{3}})+|\d*)(?:{re.escape(decimal)}(?P<rest>\d*))?"
        rf"(?P<power>[eE][-+]?\d+)?\s*(?P<after>{_UNIT}?)"
    )
    for decimal, grouping in _GROUPING.items()
}
_LEADING_ZERO = re.compile(r"0\d+")
_ISO_DATE = re.compile(r"\d{4}-\d{1,2}(-\d{1,2}([T ]\d.*)?)?|\d{4}/\d{1,2}/\d{1,2}([T ]\d.*)?")
_SHORT_DATE = re.compile(r"\d{1,2}[/.-]\d{1,2}[/.-]\d{2}( .*)?")
# pandas guesses a format with a year of four digits only
_SHORT_YEARS = [f"%{a}{s}%{b}{s}%y{t}" for s in "/.-" for a, b in ("md", "dm") for t in ("", " %H:%M")]
# words that do not change if pandas reads them as a number or a bool
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?|True|False")


def import_pandas() -> Any:
    """Import pandas, or raise an error that names the extra."""
    return import_extra("pandas", "reading a table")


@dataclass(frozen=True)
class ColumnType:
    """The type of a column.

    Attributes:
        kind: ``number``, ``date`` or ``words``.
        note: what a user may not expect, or an empty string.
        decimal: decimal sign of numbers.
        formats: ``strftime`` formats of dates, or ``ISO8601``.
    """

    kind: Kind
    note: str = ""
    decimal: str = "."
    formats: tuple[str, ...] = ()


def words(column: Any, missing: Collection[str] = ()) -> Any:
    """Return a column as a pandas categorical; missing values are NaN.

    3.0 and "3 " are "3", and "TRUE" is "True", as pandas reads a column that has no other words.
    """
    pandas = import_pandas()
    try:
        codes, values = pandas.factorize(column)
    except TypeError:  # lists and other cells that cannot be hashed
        codes, values = pandas.factorize(column.astype(object).map(str, na_action="ignore"))
    kept: dict[str, int] = {}
    index = []
    for value in values:
        word = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        word = word.title() if word.lower() in ("true", "false") else word
        index.append(-1 if word in missing else kept.setdefault(word, len(kept)))
    # the code of missing values, -1, picks the last entry
    codes = np.array([*index, -1])[codes]
    found = pandas.Categorical.from_codes(codes, categories=pandas.Index(list(kept), dtype=object))
    return pandas.Series(found, index=column.index, name=column.name)


def as_words(values: Iterable[Any]) -> list[str]:
    """Return the words that stand for some values, such as "3" for 3.0."""
    return list(words(import_pandas().Series(list(values), dtype=object)))


def mean_and_deviation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation without NaN, also if the squares of the values overflow."""
    _, exponent = np.frexp(np.nanmax(np.abs(values)))  # scaling by a power of two is exact
    scaled = np.ldexp(values, -exponent)
    mean, deviation = np.ldexp([np.nanmean(scaled), np.nanstd(scaled)], exponent).tolist()
    return mean, deviation


def look_up(column: Any, places: Mapping[str, int], unknown: int, missing: int) -> NDArray[np.int64]:
    """Return the index of every word of a column, with values for unknown and missing words."""
    found = words(column)
    table = [places.get(word, unknown) for word in found.cat.categories]
    chosen: NDArray[np.int64] = np.array([*table, missing], dtype=np.int64)[found.cat.codes]
    return chosen


def is_number(column: Any) -> bool:
    """Return whether the dtype is that of real numbers or time spans; bools are words."""
    return column.dtype.kind in "iufm"


def is_date(column: Any) -> bool:
    """Return whether the dtype is that of dates."""
    return bool(column.dtype.kind == "M")


def numbers(column: Any, decimal: str = ".") -> NDArray[np.float64]:
    """Return the numbers of a column, time spans in days; NaN for other values and infinity."""
    if column.dtype.kind == "m":
        column = column / import_pandas().Timedelta(days=1)
    if is_number(column):
        found = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        held = words(column, (NOTHING,))
        parsed = [_parse_number(word, decimal)[0] for word in held.cat.categories]
        found = np.array([*parsed, np.nan])[held.cat.codes]
    return np.where(np.isfinite(found), found, np.nan)


def dates(column: Any, formats: Sequence[str] = ()) -> Any:
    """Return the dates of a column in UTC, without a time zone; NaT for other values.

    Words are parsed by the formats, and else as ISO 8601.
    """
    if not is_date(column):
        held = words(column, (NOTHING,))
        found = _parse_dates(held.cat.categories, [*formats, ISO])
        # the code of missing values, -1, is not in the index
        return found.reindex(held.cat.codes).set_axis(column.index).rename(column.name)
    moments = import_pandas().to_datetime(column, utc=True).dt.tz_localize(None)
    return moments.astype("datetime64[us]")  # nanoseconds end in the year 2262


def days(column: Any, formats: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return the :func:`dates` of a column as days since 1970; NaN for other values."""
    moments = dates(column, formats)
    passed = moments.astype("int64").to_numpy() / 86_400e6  # microseconds of a day
    return np.where(moments.isna().to_numpy(), np.nan, passed)


def needs_text(values: Iterable[str]) -> bool:
    """Return whether some of these words would change if pandas inferred their type."""
    return not all(_PLAIN.fullmatch(word) for word in values)


def infer_column(
    column: Any, decimal: str | None, prefer: str = ".", dayfirst: bool | None = None
) -> tuple[Any, ColumnType]:
    """Return a column as numbers, dates or a categorical, and its inferred type.

    Args:
        column: column as pandas read it, or words without those that mean "missing".
        decimal: decimal sign; None infers it.
        prefer: decimal sign if both are possible, as in 1,665.
        dayfirst: whether 05/09/2022 is in September; None infers it from all cells.
    """
    pandas = import_pandas()
    if is_date(column):
        return dates(column), ColumnType("date", "dates", formats=(ISO,))
    if column.dtype.kind == "m":
        return column, ColumnType("number", "time spans, in days")
    if is_number(column):
        infinite = np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan)).any()
        return column, ColumnType("number", "infinite values count as missing" if infinite else "")
    held = words(column)
    counts = held.value_counts()
    counts = counts[(counts > 0) & (counts.index != NOTHING)]
    values = [str(word) for word in counts.index]
    if not values:
        return held, ColumnType("words")
    if all(word.isdecimal() for word in values) and any(map(_LEADING_ZERO.fullmatch, values)):
        return held, ColumnType("words", "taken as words: codes with leading zeros")
    choices = possible_decimals(values) if decimal is None else _fitting(values, [decimal])
    if choices:
        sign = prefer if prefer in choices else choices[0]
        amounts = pandas.Series(numbers(held, sign), index=held.index, name=held.name)
        return amounts, ColumnType("number", _number_note(values, sign), sign)
    formats = find_formats(values, dayfirst)
    if formats:
        note = "dates" + ("" if formats[0] == ISO else f" written as {formats[0]}")
        if len(formats) > 1:
            note += f", not as {formats[1]}: set dayfirst={'%d' in formats[1][:2]} if that is wrong"
        return dates(held, formats[:1]), ColumnType("date", note, formats=formats[:1])
    note = _stray_note(counts)
    if not note and NOTHING in held.cat.categories:
        note = f"{NOTHING!r} is one of its words; if it means missing, set missing=[{NOTHING}, '']"
    return held, ColumnType("words", note)


def possible_decimals(values: Sequence[str]) -> list[str]:
    """Return the decimal signs with which all words are numbers; one if both give the same."""
    found = _fitting(values, (".", ","))
    parsed = [[_parse_number(word, sign)[0] for word in values] for sign in found]
    return found[:1] if len(found) == 2 and parsed[0] == parsed[1] else found


def find_formats(values: Sequence[str], dayfirst: bool | None = None) -> tuple[str, ...]:
    """Return the date formats that fit all words, the most likely one first; at most two."""
    if not all(any(map(str.isdigit, word)) for word in values[:20]):
        return ()
    if all(map(_ISO_DATE.fullmatch, values)):
        return (ISO,) if _parse_dates(values, [ISO]).notna().all() else ()
    candidates = dict.fromkeys([*_guess_formats(values[0]), *_guess_formats(values[-1])])
    some, fitting = values[:20], []
    short = _SHORT_YEARS if _SHORT_DATE.fullmatch(values[0]) else []
    for found in [*candidates, *short]:
        if _parse_dates(some, [found]).notna().all() and _parse_dates(values, [found]).notna().all():
            fitting.append(found)
    if len(fitting) > 1:
        # 05/09/2022: usually the month is first with slashes, the day with points and hyphens
        day = dayfirst if dayfirst is not None else "/" not in fitting[0]
        fitting.sort(key=lambda found: found.startswith("%d") != day)
    return tuple(fitting[:1] if dayfirst is not None else fitting[:2])


def _guess_formats(word: str) -> list[str]:
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # for a day that cannot be a month
        guessed = [guess_datetime_format(word, dayfirst=first) for first in (False, True)]
    return [found for found in guessed if found and "%d" in found and "%Y" in found]


def _parse_dates(values: Iterable[str], formats: Sequence[str]) -> Any:
    """Return the dates of these words; NaT if no format fits."""
    pandas = import_pandas()
    given = pandas.Series(list(values), dtype=object)
    parsed = pandas.Series(pandas.NaT, index=given.index, dtype="datetime64[us]")
    for wanted in formats:
        left = parsed.isna()
        if left.any():
            moments = pandas.to_datetime(given[left], errors="coerce", utc=True, format=wanted)
            parsed[left] = moments.dt.tz_localize(None).astype("datetime64[us]")
    return parsed


def _parse_number(word: str, decimal: str) -> tuple[float, str]:
    """Return the number and its unit; NaN if the word is not a number."""
    found = _NUMBER[decimal].fullmatch(word)
    if found is None or not (found["whole"] or found["rest"]):
        return np.nan, ""
    whole = re.sub(r"\D", "", found["whole"])
    sign = "-" if found["sign"] in ("-", "−") else ""
    return float(f"{sign}{whole or 0}.{found['rest'] or 0}{found['power'] or ''}"), (
        found["before"] or found["after"] or ""
    )


def _fitting(values: Sequence[str], signs: Iterable[str]) -> list[str]:
    """Return the decimal signs with which all words are numbers of one unit."""
    fitting = []
    for sign in signs:
        units = set()
        for word in values:
            number, unit = _parse_number(word, sign)
            units.add(unit)
            if number != number or len(units) > 1:
                break
        else:
            fitting.append(sign)
    return fitting


def _number_note(values: Sequence[str], decimal: str) -> str:
    notes = []
    unit = _parse_number(values[0], decimal)[1]
    if unit == "%":
        notes.append("percent: 12% is 12")
    elif unit:
        notes.append(f"numbers with {unit}")
    if decimal == "," and any("," in word for word in values):
        notes.append("numbers with a decimal comma")
    grouped = re.compile(rf"\d{_GROUPING[decimal]}\d")
    if any(map(grouped.search, values)):
        example = "1,665.50" if decimal == "." else "1.665,50"
        notes.append(f"numbers with thousands separators: {example} is 1665.5")
    return "; ".join(notes)


def _stray_note(counts: Any) -> str:
    """Name the few words because of which a column is not one of numbers or dates."""
    total = counts.sum()
    for what in ("numbers", "dates"):
        if what == "numbers":
            invalid = counts[np.isnan([_parse_number(word, ".")[0] for word in counts.index])]
        else:
            guessed = (find_formats([str(word)]) for word in counts.index[:6])
            formats = next(filter(None, guessed), ())
            invalid = counts[_parse_dates(counts.index, formats).isna().to_numpy()]
        if 0 < invalid.sum() <= (1 - _MOSTLY) * total:
            shown = ", ".join(map(repr, invalid.index[:6]))
            return (
                f"taken as words, although most of its cells are {what}, because it also has {shown}; "
                "if these mean that a value is missing, add them to missing=[...]"
            )
    return ""
