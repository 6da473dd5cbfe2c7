"""The preprocessing of rows, fitted on the training rows and saved as JSON with a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mtlkit.data.base import DataError
from mtlkit.data.preprocessing import Preprocessing, register_preprocessing
from mtlkit.data.table.cells import needs_text, words
from mtlkit.data.table.columns import CategoryColumn, DateColumn, NumberColumn
from mtlkit.data.table.reading import Frame, Reading, import_pandas
from mtlkit.data.table.targets import Target

Rows = Any
"""A DataFrame, a mapping of columns, or a list of mappings."""


@register_preprocessing("table")
@dataclass(frozen=True)
class TablePreprocessing(Preprocessing):
    """Turns rows into inputs, as fitted on the training rows.

    The inputs of a row are one float tensor, which the backbone ``table`` reads: numbers and dates, then
    indicators of missing values, then codes of categories.

    Attributes:
        reading: how files are read.
        numbers: columns of numbers and dates.
        categories: columns of words.
        targets: columns to predict; rows need not have them.
        width: number of columns of a file without a header.
        optional: columns that may be missing, because one of several tables lacks them.

    Example:
        >>> import mtlkit, pandas
        >>> rows = pandas.DataFrame({"age": [20, 30, 40, 50] * 9})
        >>> rows["old"] = ["no", "no", "yes", "no", "yes", "yes"] * 6
        >>> data = mtlkit.load_dataset("table(targets={old: binary})", file=rows)
        >>> data.preprocessing.inputs([{"age": 44}, {"age": None}]).shape
        torch.Size([2, 1])
    """

    format: ClassVar[int] = 2
    batch_size: ClassVar[int] = 4096

    reading: Reading
    numbers: tuple[DateColumn | NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    targets: tuple[Target, ...]
    width: int | None = None
    optional: tuple[str, ...] = ()

    @property
    def number_inputs(self) -> int:
        """Number of inputs that are numbers or indicators."""
        return sum(column.size + column.indicator for column in self.numbers)

    @property
    def category_sizes(self) -> list[int]:
        """Number of codes of every category column."""
        return [column.size for column in self.categories]

    @property
    def columns(self) -> list[str]:
        """Names of the input columns."""
        return [c.name for c in self.numbers] + [c.name for c in self.categories]

    def read(self, path: str | Path) -> Frame:
        """Return the rows of a file.

        Raises:
            DataError: for a file that cannot be read, that lacks a column, or has words in columns of
                numbers.
        """
        if not Path(path).is_file():
            raise DataError(f"there is no file {path}")
        text = [column.name for column in self.numbers if isinstance(column, DateColumn)]
        text += [column.name for column in self.categories if needs_text(column.values)]
        for target in self.targets:
            if needs_text([*target.classes, *(word for yes in target.yes for word in yes)]):
                text += target.columns
        frame = self.reading.load(Path(path), text)
        if self.width is not None and len(frame.columns) != self.width:
            raise DataError(
                f"{path} has {len(frame.columns)} columns, and the training table has {self.width}. "
                "Without a header, columns are identified by position: keep all of them; those of the "
                "targets may be empty"
            )
        self._check_columns(frame, str(path))
        self.check_numbers(frame)
        return frame

    def check_numbers(self, frame: Frame) -> None:
        """Raise an error for words in columns of numbers and dates."""
        for column in self.numbers:
            if column.name in frame.columns:
                column.encode(self._known(frame[column.name]))

    def inputs(self, rows: Rows) -> Tensor:
        """Return the inputs (N, d) of rows: a DataFrame, a mapping of columns, or a list of mappings.

        Raises:
            DataError: for a missing column, or words in a column of numbers.
        """
        frame = _as_frame(rows)
        self._check_columns(frame, "this table")
        frame = frame.reindex(columns=self.columns)
        amounts, indicators = [], []
        for column in self.numbers:
            values, missing = column.encode(self._known(frame[column.name]))
            amounts.append(values)
            if column.indicator:
                indicators.append(missing[:, None])
        codes = [c.encode(frame[c.name], self.reading.missing)[:, None] for c in self.categories]
        joined = np.concatenate([*amounts, *indicators, *codes], axis=1)
        most = np.finfo(np.float32).max
        return torch.from_numpy(joined.clip(-most, most).astype(np.float32))

    def example(self, size: int) -> Tensor:
        """Return random inputs (size, d): normal numbers, and valid codes."""
        drawn = torch.Generator().manual_seed(0)
        amounts = torch.randn(size, self.number_inputs, generator=drawn)
        codes = [torch.randint(n, (size, 1), generator=drawn) for n in self.category_sizes]
        return torch.cat([amounts, *codes], dim=1)

    def labels(self, rows: Rows) -> dict[str, Tensor]:
        """Return the targets of rows by task."""
        frame = _as_frame(rows)
        columns = [column for target in self.targets for column in target.columns]
        absent = [column for column in columns if column not in frame.columns]
        if absent:
            raise DataError(f"the rows lack the target column(s) {', '.join(map(repr, absent))}")
        known = import_pandas().DataFrame({name: self._known(frame[name]) for name in columns})
        return {target.task: target.labels(known) for target in self.targets}

    def _known(self, column: Any) -> Any:
        """Return a column without the words that mean "missing"."""
        is_text = column.dtype == object or str(column.dtype) in ("str", "string", "category")
        return words(column, self.reading.missing) if is_text else column

    def _check_columns(self, frame: Frame, source: str) -> None:
        needed = [name for name in self.columns if name not in self.optional]
        lacking = [name for name in needed if name not in frame.columns]
        if lacking:
            raise DataError(
                f"the network reads columns that {source} lacks: {', '.join(map(repr, lacking))}; given "
                f"are: {', '.join(map(str, frame.columns))}"
            )


def _as_frame(rows: Rows) -> Frame:
    pandas = import_pandas()
    frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(rows)
    return frame.rename(columns=lambda name: str(name).strip())
