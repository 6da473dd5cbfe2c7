"""The data set ``table``: own files, without a line of code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mtlkit.config.launching import warn_first
from mtlkit.config.registry import architectures, option_names
from mtlkit.config.spec import Part, SpecLike, format_spec
from mtlkit.data.base import DataError, DataSet, SplitName, TensorSplit, register_dataset
from mtlkit.data.notes import say
from mtlkit.data.table.leaks import find_leaks
from mtlkit.data.table.preprocessing import CategoryColumn, NumberColumn, Preprocessing
from mtlkit.data.table.reading import (
    MISSING,
    ColumnFinder,
    Frame,
    Reading,
    find_file,
    import_pandas,
    stray_words,
)
from mtlkit.data.table.splitting import Splitting
from mtlkit.data.table.targets import find_targets, fit_targets
from mtlkit.errors import SpecError

_say = partial(say, "table")
_HIDDEN = (128, 64)
_MANY_WORDS = 50
_INDEX = "Unnamed: 0"  # a header without a word, as pandas writes for its index


@register_dataset("table")
class Table(DataSet):
    """A CSV, gzipped CSV or Parquet file; some of its columns are targets, the others inputs.

    Columns are named as in the header, or with ``header=False`` by their number, counted from 1.
    Numbers are standardized and categories encoded by the training rows alone. A missing number is 0
    after that, and one more input says so; an unknown or missing category has an index of its own; a
    missing target is a missing label. True and False are categories.

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
        inputs: columns to learn from; None takes all that are not targets, split or time, and that do
            not merely number the rows.
        ignore: columns to leave out.
        categories: columns of numbers that are codes, not amounts; 0012 stays 0012.
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
    minimum_steps = 4000

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
        self.check_counts(min_count=min_count, train=train)
        first = seed if split_seed is None else split_seed
        splitting = Splitting(self.name, first, split, time, val_share, test_share, train, test_seed)
        self.path = find_file(file, data_dir)
        reading = Reading(header, separator, tuple(missing), encoding)
        frame = reading.read(self.path, [str(column) for column in categories])
        find = ColumnFinder(self.path.name, list(frame.columns), header)
        others = splitting.columns(find)
        test = None
        if test_file is not None:
            test = reading.read_like(find_file(test_file, data_dir), frame)
        wanted = find_targets(targets, frame, find, _say, test)
        frames = splitting.apply(frame, find, test)
        learned = frames["train"]
        fitted = fit_targets(wanted, learned, str(self.path), _say)
        taken = {column for target in fitted for column in target.columns}
        self.input_columns = _input_columns(find, taken, others, inputs, ignore)
        if inputs is None:
            self.input_columns = _without_counters(frame, self.input_columns)
        self.codes = {find(column) for column in categories}
        self.dates = set(frame.attrs["dates"])
        self.min_count = min_count
        self.frames = frames
        self.targets = fitted
        self.reading = reading
        self.width = None if reading.names_columns(self.path) else len(frame.columns)
        numbers, words = fit_columns(learned, self.input_columns, self.codes, self.dates, min_count)
        if not numbers and not words:
            raise DataError(f"the table {self.path} has no column to learn from besides its targets")
        for leak in find_leaks(learned, fitted, numbers, words):
            warn_first(leak)
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
        self.preprocessing.check_numbers(self.frames["test"])  # which may be another file
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


def _input_columns(
    find: ColumnFinder,
    targets: set[str],
    others: set[str],
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


def _without_counters(frame: Frame, names: Sequence[str]) -> list[str]:
    """These columns without those that number the rows, such as pandas' index."""
    kept = []
    for name in names:
        column = frame[name]
        whole = import_pandas().api.types.is_integer_dtype(column) and column.notna().all()
        if whole and ((column.diff()[1:] == 1).all() or (name == _INDEX and column.is_unique)):
            _say(
                f"column {name!r} is left out: it numbers the rows; if it means something, name it "
                "among inputs=[...]"
            )
        else:
            kept.append(name)
    return kept


def fit_columns(
    frame: Frame, names: Sequence[str], codes: set[str], dates: set[str], min_count: int
) -> tuple[tuple[NumberColumn, ...], tuple[CategoryColumn, ...]]:
    """Learn how to encode these columns of the training rows; those that say nothing are left out."""
    is_numeric = import_pandas().api.types.is_numeric_dtype
    numbers, words = [], []
    for name in names:
        column = frame[name]
        found: NumberColumn | CategoryColumn | None
        if not is_numeric(column) and name not in codes and (stray := stray_words(column)):
            _say(
                f"column {name!r} is taken as words, although most of its cells are numbers, since it "
                f"also holds {', '.join(map(repr, stray[:6]))}; if these mean that a value is missing, "
                "add them to missing=[...]"
            )
        if is_numeric(column) and name not in codes:
            found = NumberColumn.fit(column, name in dates)
            if found is not None:
                numbers.append(found)
        elif column.nunique() > max(_MANY_WORDS, len(column) / 2):
            _say(
                f"column {name!r} is left out: its words differ in most rows, so nothing can be learned"
            )
            continue
        else:
            found = CategoryColumn.fit(column, min_count)
            if found is not None:
                words.append(found)
        if found is None:
            _say(f"column {name!r} is left out: it is the same in all training rows")
    return tuple(numbers), tuple(words)
