"""Several tables whose inputs one network reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mtlkit.data.base import DataError
from mtlkit.data.table.cells import Taken
from mtlkit.data.table.columns import fit_columns
from mtlkit.data.table.dataset import Table
from mtlkit.data.table.reading import import_pandas


def encode_together(tables: Sequence[Table]) -> None:
    """Encode the inputs of tables, of which no split has been made yet, in one way.

    Numbers are standardized and words coded by the training rows of all of them. A column that a
    table lacks, or has to predict, is missing in its rows.
    """
    pandas = import_pandas()
    rows = [table.frames["train"][table.input_columns] for table in tables]
    codes = set[str]().union(*(table.codes for table in tables))
    names = list(dict.fromkeys(name for table in tables for name in table.input_columns))
    taken: dict[str, Taken] = {}
    for name in names:
        found = [table.taken[name] for table in tables if name in table.input_columns]
        if len({how.kind for how in found}) > 1 and name not in codes:
            one, other, *_ = dict.fromkeys(f"{how.kind.rstrip('s')}s" for how in found)
            raise DataError(
                f"column {name!r} holds {one} in one source and {other} in another: "
                f"{', '.join(Path(table.file_name).name for table in tables)}; rename or ignore it in "
                f"one of them, or say categories=[{name}]"
            )
        formats = tuple(dict.fromkeys(one for how in found for one in how.formats))
        taken[name] = Taken(found[0].kind, found[0].note, found[0].decimal, formats)
    least = max(table.min_count for table in tables)
    joined = pandas.concat(rows, ignore_index=True)
    numbers, words, _ = fit_columns(joined, names, taken, codes, least)
    optional = [name for name in names if any(name not in frame for frame in rows)]
    for table in tables:
        table.encode_by(numbers, words, optional)
