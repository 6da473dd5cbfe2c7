"""The data set ``table``: own files, without a line of code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit.data.base import DataError, DataSet, SplitName, TensorSplit, register_dataset
from mtlkit.data.randomness import generator
from mtlkit.data.table.leaks import find_leaks
from mtlkit.data.table.preprocessing import CategoryColumn, NumberColumn, Preprocessing
from mtlkit.data.table.reading import MISSING, Frame, Reading, find_file, import_pandas
from mtlkit.data.table.splitting import Parts, split_by_column, split_by_share, split_by_time
from mtlkit.data.table.targets import find_targets
from mtlkit.errors import SpecError, unknown_name
from mtlkit.launching import is_first_process, warn_first
from mtlkit.registry import architectures, option_names
from mtlkit.spec import Part, SpecLike, format_spec

__all__ = ["Table", "fit_columns"]

_HIDDEN = (128, 64)
_MANY_WORDS = 50


@register_dataset("table")
class Table(DataSet):
    """A CSV, gzipped CSV or Parquet file; some of its columns are targets, the others inputs.

    Columns are named as in the header, or with ``header=False`` by their number, counted from 1.
    Numbers are standardised and categories encoded by the training rows alone. A missing number is 0
    after that, and one more input says so; an unknown or missing category has an index of its own; a
    missing target is a missing label.

    Args:
        data_dir: folder that ``file`` may also be given from; None means ``$MTLKIT_DATA``.
        seed: decides which rows go where.
        file: path of the table.
        targets: ``{task: kind}``, where a kind is ``binary``, ``classification``, ``regression``,
            ``multilabel``, any kind that is registered, or ``auto``, which looks at the column and says
            what it took. Its options: ``column`` or ``columns``, where the task has another name;
            ``yes``, the value or values of a binary column that count as yes; ``classes``, in their
            order; ``scale=False`` for a regression in its own unit instead of standard deviations. A
            list of columns means ``auto``.
        test_file: a second file with the rows to test on.
        header: whether the first line names the columns.
        separator: between columns; None finds it.
        missing: words that mean that a value is missing.
        encoding: of a text file.
        inputs: columns to learn from; None takes all that are not targets, split or time.
        ignore: columns to leave out.
        categories: columns of numbers that are codes, not amounts.
        split: column that says train, val or test.
        time: column to split by: the last rows are for test, those before them for validation.
        val_share: share of the rows of ``file`` for validation.
        test_share: share of the rows of ``file`` for test, where no test file is given.
        split_seed: decides which rows go where, instead of the seed of the run.
        test_seed: keeps the rows for test that this seed has, where they are drawn.
        min_count: words that occur less often in training share the index of unknown ones.
        train: at most this many training rows.
    """

    summary = "your own CSV or Parquet file"
    origin = "your file"

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        file: str,
        targets: Mapping[Any, Any] | Sequence[Any] | str | int,
        test_file: str | None = None,
        header: bool = True,
        separator: str | None = None,
        missing: Sequence[str] = MISSING,
        encoding: str = "utf-8",
        inputs: Sequence[Any] | None = None,
        ignore: Sequence[Any] = (),
        categories: Sequence[Any] = (),
        split: str | int | None = None,
        time: str | int | None = None,
        val_share: float = 0.2,
        test_share: float = 0.2,
        split_seed: int | None = None,
        test_seed: int | None = None,
        min_count: int = 2,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self.check_share(val_share)
        if not 0 < test_share < 1 - val_share:
            raise SpecError(
                f"option test_share of table must be above 0 and leave a part for training: {test_share}"
            )
        self.check_counts(min_count=min_count, train=train)
        if split is not None and time is not None:
            raise SpecError("options split and time of table exclude each other")
        self.path = find_file(file, data_dir)
        reading = Reading(header, separator, tuple(missing), encoding)
        frame = reading.read(self.path)
        find = _ColumnFinder(self.path, list(frame.columns), header)
        split_column = None if split is None else find(split)
        time_column = None if time is None else find(time)
        wanted = find_targets(targets, frame, find, _say)
        shares: dict[SplitName, float] = {"val": val_share}
        if test_file is None:
            shares["test"] = test_share
        first = seed if split_seed is None else split_seed
        if time_column is not None:
            parts = split_by_time(frame[time_column], shares, time_column)
        elif split_column is not None:
            parts = _filled(split_by_column(frame, split_column), shares, first, test_seed)
        else:
            parts = split_by_share(len(frame), shares, first, test_seed)
        if train is not None and train < len(parts["train"]):
            parts["train"] = np.sort(
                generator(first, "table", "train").permutation(parts["train"])[:train]
            )
        frames = {part: frame.iloc[rows] for part, rows in parts.items()}
        if test_file is not None:
            if "test" in frames:
                raise SpecError(
                    f"test_file is given, but column {split_column!r} has rows for test as well"
                )
            frames["test"] = _read_test(reading, find_file(test_file, data_dir), list(frame.columns))

        learnt = frames["train"]
        for target, _ in wanted:
            target.check(learnt, str(self.path))
        fitted = [t.standardised(learnt) if scaled else t for t, scaled in wanted]
        for target in fitted:
            if target.means:
                units = zip(target.columns, target.means, target.deviations, strict=True)
                shown = "; ".join(f"{c!r} has mean {m:.6g}, deviation {d:.6g}" for c, m, d in units)
                _say(f"target {target.task!r} is in standard deviations: {shown}")
        taken = {column for target in fitted for column in target.columns}
        self.input_columns = _input_columns(find, taken, {split_column, time_column}, inputs, ignore)
        self.codes = {find(column) for column in categories}
        self.min_count = min_count
        self.frames = frames
        self.targets = tuple(fitted)
        self.reading = reading
        numbers, words = fit_columns(learnt, self.input_columns, self.codes, min_count)
        if not numbers and not words:
            raise DataError(f"the table {self.path} has no column to learn from besides its targets")
        for leak in find_leaks(learnt, fitted, numbers, words):
            warn_first(leak)
        self.width = None if reading.names_columns(self.path) else len(frame.columns)
        self.tasks = tuple(target.make_task() for target in fitted)
        self.encode_by(numbers, words)

    def encode_by(
        self,
        numbers: Sequence[NumberColumn],
        words: Sequence[CategoryColumn],
        optional: Sequence[str] = (),
    ) -> None:
        """Make inputs of these columns; the table may lack some, and has them missing in all rows."""
        self.preprocessing = Preprocessing(
            self.reading, numbers, words, self.targets, self.width, tuple(optional)
        )
        self.input_shape = (self.preprocessing.number_inputs + len(words),)
        self.default_architecture = self.complete_architecture("hard_sharing")

    def make_split(self, split: SplitName) -> TensorSplit:
        """One part of the rows."""
        rows = self.frames.pop(split)
        inputs = self.preprocessing.inputs(rows[self.input_columns])
        return TensorSplit(inputs, self.preprocessing.labels(rows), seed=self.seed)

    def backbone(self, hidden: Sequence[int] = _HIDDEN) -> str:
        """The config string of a backbone that reads these inputs: embeddings, then linear layers."""
        options = {
            "numbers": self.preprocessing.number_inputs,
            "categories": self.preprocessing.category_sizes,
        }
        return format_spec([Part("table", options, tuple(hidden))])

    def complete_architecture(self, spec: SpecLike) -> str:
        """The architecture on this table's backbone, where it names none.

        Mixtures of experts read the embeddings themselves, as in MMoE's paper.
        """
        parts = architectures.expand(spec)
        if len(parts) == 1 and "backbone" not in parts[0].options:
            known = option_names(architectures.get(parts[0].name))
            if "backbone" in known:
                backbone = self.backbone(() if "expert" in known else _HIDDEN)
                parts = [Part(parts[0].name, {**parts[0].options, "backbone": backbone})]
        return format_spec(parts)


class _ColumnFinder:
    """From what the user calls a column to its name."""

    def __init__(self, path: Path, columns: Sequence[str], header: bool) -> None:
        self.path = path
        self.columns = columns
        self.header = header

    def __call__(self, given: Any) -> str:
        name = str(given)
        if name in self.columns:
            return name
        error = unknown_name(f"column of {self.path.name}", name, self.columns)
        if self.header:
            raise SpecError(
                f"{error}. If the first line is no header, say header=False and count from 1"
            )
        raise SpecError(f"{error}. Without a header, columns are numbers, counted from 1")


def _input_columns(
    find: _ColumnFinder,
    targets: set[str],
    others: set[str | None],
    inputs: Sequence[Any] | None,
    ignore: Sequence[Any],
) -> list[str]:
    ignored = {find(column) for column in ignore}
    if inputs is None:
        return [name for name in find.columns if name not in targets | others | ignored]
    chosen = [find(column) for column in inputs]
    for name in chosen:
        if name in targets:
            raise SpecError(f"column {name!r} is a target; it cannot be an input as well")
    return [name for name in chosen if name not in ignored]


def fit_columns(
    frame: Frame, names: Sequence[str], codes: set[str], min_count: int
) -> tuple[tuple[NumberColumn, ...], tuple[CategoryColumn, ...]]:
    """Learn how to encode these columns of the training rows; those that say nothing are left out."""
    is_numeric = import_pandas().api.types.is_numeric_dtype
    numbers, words = [], []
    for name in names:
        column = frame[name]
        found: NumberColumn | CategoryColumn | None
        if is_numeric(column) and name not in codes:
            found = NumberColumn.fit(column)
            if found is not None:
                numbers.append(found)
        elif column.nunique() > max(_MANY_WORDS, len(column) / 2):
            _say(f"column {name!r} is left out: its words differ in most rows, so nothing can be learnt")
            continue
        else:
            found = CategoryColumn.fit(column, min_count)
            if found is not None:
                words.append(found)
        if found is None:
            _say(f"column {name!r} is left out: it is the same in all training rows")
    return tuple(numbers), tuple(words)


def _filled(parts: Parts, shares: dict[SplitName, float], seed: int, test_seed: int | None) -> Parts:
    """Parts that the column does not name are drawn from the training rows."""
    lacking = {part: share for part, share in shares.items() if part not in parts}
    if not lacking:
        return parts
    train = parts["train"]
    drawn = split_by_share(len(train), lacking, seed, test_seed)
    return {**parts, **{part: train[rows] for part, rows in drawn.items()}}


def _read_test(reading: Reading, path: Path, columns: Sequence[str]) -> Frame:
    frame = reading.read(path)
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise DataError(f"the test file {path} lacks the column(s) {', '.join(map(repr, lacking))}")
    return frame


_said: set[str] = set()


def _say(message: str) -> None:
    """Say what was decided, once per process: a comparison reads its data many times."""
    if message not in _said and is_first_process():
        _said.add(message)
        print(f"table: {message}", file=sys.stderr)
