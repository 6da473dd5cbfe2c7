"""Several tables whose inputs one network reads."""

from __future__ import annotations

from collections.abc import Sequence

from mtlkit.data.base import DataError
from mtlkit.data.table.dataset import Table, fit_columns
from mtlkit.data.table.reading import import_pandas


def encode_together(tables: Sequence[Table]) -> None:
    """Encode the inputs of tables, of which no split has been made yet, in one way.

    Numbers are standardized and words numbered by the training rows of all of them. A column that a
    table lacks, or has to predict, is missing in its rows.
    """
    pandas = import_pandas()
    is_numeric = pandas.api.types.is_numeric_dtype
    rows = [table.frames["train"][table.input_columns] for table in tables]
    codes = set[str]().union(*(table.codes for table in tables))
    dates = set[str]().union(*(table.dates for table in tables))
    names = list(dict.fromkeys(name for table in tables for name in table.input_columns))
    for name in names:
        kinds = {is_numeric(frame[name]) for frame in rows if name in frame and name not in codes}
        if len(kinds) > 1:
            raise DataError(
                f"column {name!r} holds numbers in one source and words in another: "
                f"{', '.join(table.path.name for table in tables)}; rename or ignore it in one of them, "
                f"or say categories=[{name}]"
            )
    least = max(table.min_count for table in tables)
    numbers, words = fit_columns(pandas.concat(rows, ignore_index=True), names, codes, dates, least)
    optional = [name for name in names if any(name not in frame for frame in rows)]
    for table in tables:
        table.encode_by(numbers, words, optional)
