"""The data set ``table``: your own CSV or Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtlkit.config.launching import warn_first
from mtlkit.config.registry import architectures, option_names
from mtlkit.config.spec import Part, SpecLike, format_spec, parse_call
from mtlkit.data.base import Count, DataError, SplitName, TensorSplit, register_dataset
from mtlkit.data.files import DataDir
from mtlkit.data.table.baselines import MODELS, Scores, fit_baselines
from mtlkit.data.table.cells import ColumnType
from mtlkit.data.table.columns import CategoryColumn, InputColumn, NumberColumn, fit_columns
from mtlkit.data.table.leaks import find_leaks
from mtlkit.data.table.preprocessing import TablePreprocessing
from mtlkit.data.table.reading import ColumnFinder, Frame, find_file, import_pandas, name_of
from mtlkit.data.table.splitting import RowData
from mtlkit.data.table.targets import find_targets, fit_targets
from mtlkit.errors import SpecError

_HIDDEN = (128, 64)
_INDEX = "Unnamed: 0"  # the empty header that pandas writes for its index


@register_dataset("table")
class Table(RowData):
    """A CSV, gzipped CSV or Parquet file, or a DataFrame; some columns are targets, the others inputs.

    Columns are named as in the header, or with ``header=False`` by their number, counted from 1.
    Numbers are standardized and categories encoded by the training rows only. A missing number becomes 0
    and sets one more input to 1; unknown and missing categories have their own codes; a missing target
    is a missing label. True and False are categories. A date becomes its day as a number, and its phase
    in the year, the week and the day; a time span becomes a number of days. Numbers may have thousands
    separators, a decimal comma, or a percent sign; numbers that start with 0 are codes. These decisions
    and the columns left out are printed once, and ``mtlkit data`` shows them as a table.

    Args:
        data_dir: folder to which ``file`` may also be relative; None means ``$MTLKIT_DATA``.
        seed: seed of the splits.
        file: path of the table; in Python also a pandas DataFrame.
        targets: ``{task: kind}``, where a kind is ``binary``, ``classification``, ``regression``,
            ``multilabel``, any other registered kind, or ``auto``, which guesses from the column and
            prints the guess. Its options: ``column`` or ``columns``, if the task has another name;
            ``yes``, the value or values of a binary column that mean yes; ``classes``, in their order;
            ``scale=False`` for a regression in the unit of the data instead of standard deviations. A
            list of columns means ``auto``. ``'school_*'`` means all columns that start with ``school_``.
        test_file: a second table with the test rows.
        inputs: input columns; None means all except targets, split, time, and row numbers.
        ignore: columns to leave out.
        categories: columns of numbers that are codes, not amounts.
        min_count: words that occur less often in the training rows are encoded as unknown.
        options: those of :class:`~mtlkit.data.table.splitting.RowData`.

    Example:
        >>> import mtlkit, pandas
        >>> rows = pandas.DataFrame({"age": range(20, 60), "day": ["2024-05-01", "2024-11-01"] * 20})
        >>> rows["income"] = 900.0 * rows["age"] + 7 * (rows["age"] % 3)
        >>> rows["old"] = ["no", "yes", "no", "no", "yes"] * 8
        >>> rows = rows.sample(frac=1, random_state=0)
        >>> data = mtlkit.load_dataset("table(targets={income: regression, old: binary})", file=rows)
        >>> data.title
        'DataFrame, 2 targets'
        >>> [(column.name, column.taken) for column in data.input_table]
        [('age', 'number'), ('day', 'date')]
    """

    summary = "your own CSV or Parquet file"
    origin = "your file"
    minimum_steps = 4000

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        file: Any,
        targets: Mapping[Any, Any] | Sequence[str | int] | str | int,
        test_file: Any = None,
        inputs: Sequence[str | int] | None = None,
        ignore: Sequence[str | int] = (),
        categories: Sequence[str | int] = (),
        min_count: Count = 2,
        **options: Any,
    ) -> None:
        super().__init__(data_dir, seed, **options)
        source = find_file(file, data_dir)
        self.file_name = name_of(source)
        frame, test, find = self.read_rows(source, [str(column) for column in categories], test_file)
        wanted = find_targets(targets, frame, find, self.notices, test)
        frames = self.split_rows(frame, find, test)
        learned = frames["train"]
        fitted = fit_targets(wanted, learned, self.file_name, self.notices)
        predicted = {column for target in fitted for column in target.columns}
        others = [find(c) for c in (self.split_column, self.time_column) if c is not None]
        self.input_columns = _input_columns(find, predicted, others, inputs, ignore)
        counters = _counters(frame, self.input_columns) if inputs is None else []
        self.input_columns = [name for name in self.input_columns if name not in counters]
        self.codes = {find(column) for column in categories}
        self.taken: dict[str, ColumnType] = frame.attrs["taken"]
        self.min_count = min_count
        self.frames = frames
        self.targets = fitted
        self.width = None if self.reading.names_columns(source) else len(frame.columns)
        numbers, words, described = fit_columns(
            learned, self.input_columns, self.taken, self.codes, min_count
        )
        why = "it numbers the rows; to use it, name it in inputs=[...]"
        described += [InputColumn(name, "left out", 0, len(learned), why) for name in counters]
        self.input_table: list[InputColumn] = described
        for column in self.input_table:
            if column.note:
                shown = f"left out: {column.note}" if column.taken == "left out" else column.note
                be = "is " if shown.startswith(("left out", "taken as")) else ""
                self.notices.add("column", column.name, be + shown)
        self.notices.print()
        if not numbers and not words:
            raise DataError(f"the table {self.file_name} has no input columns besides its targets")
        for leak in find_leaks(learned, fitted, numbers, words):
            warn_first(leak)
        self.tasks = tuple(target.make_task() for target in fitted)
        self.encode_by(numbers, words)

    def encode_by(
        self,
        numbers: tuple[NumberColumn, ...],
        words: tuple[CategoryColumn, ...],
        optional: Sequence[str] = (),
    ) -> None:
        """Encode inputs with these columns; ``optional`` ones may be missing from the table."""
        self.preprocessing = TablePreprocessing(
            self.reading, numbers, words, self.targets, self.width, tuple(optional)
        )
        self.preprocessing.check_numbers(self.frames["test"])  # may be from another file
        self.input_shape = (self.preprocessing.number_inputs + len(words),)
        self.default_architecture = self.complete_architecture("hard_sharing")

    def make_split(self, split: SplitName) -> TensorSplit:
        """Encode one part of the rows."""
        rows = self.frames.pop(split)
        inputs = self.preprocessing.inputs(rows[self.input_columns])
        return TensorSplit(inputs, self.preprocessing.labels(rows), seed=self.seed)

    def baselines(self, models: Sequence[str] = MODELS) -> dict[str, Scores]:
        """Fit simple models on the training rows, and return their test metrics by model and task.

        ``models`` are some of ``constant``, ``ridge``, ``forest`` and ``boosting``.
        """
        return fit_baselines(self, self.preprocessing.number_inputs, models)

    def complete_architecture(self, spec: SpecLike) -> str:
        """Return the architecture with the backbone ``table`` and the sizes of the inputs.

        Mixtures of experts read the embeddings directly, as in the MMoE paper.
        """
        parts = architectures.expand(spec)
        if len(parts) != 1:
            return format_spec(parts)
        known = option_names(architectures.get(parts[0].name))
        given = parts[0].options.get("backbone", "table")
        if "backbone" not in known or not isinstance(given, str | Mapping | Part):
            return format_spec(parts)
        backbone = parse_call(given)
        if backbone.name != "table":
            return format_spec(parts)
        sizes = {
            "numbers": self.preprocessing.number_inputs,
            "categories": self.preprocessing.category_sizes,
        }
        for option, size in sizes.items():
            found = backbone.options.get(option, size)
            if found != size and list(found if option == "categories" else [found]) != size:
                raise SpecError(
                    f"backbone {backbone}: this table has {option}={size}, not {found!r}; leave out "
                    "numbers and categories, which the data set sets"
                )
        hidden = backbone.arguments
        if "backbone" not in parts[0].options and "expert" not in known:
            hidden = _HIDDEN
        complete = str(Part("table", {**backbone.options, **sizes}, hidden))
        return format_spec([Part(parts[0].name, {**parts[0].options, "backbone": complete})])


def _input_columns(
    find: ColumnFinder,
    targets: set[str],
    others: Sequence[str],
    inputs: Sequence[Any] | None,
    ignore: Sequence[Any],
) -> list[str]:
    ignored = {find(column) for column in ignore}
    if inputs is None:
        return [name for name in find.columns if name not in {*targets, *others, *ignored}]
    chosen = dict.fromkeys(find(column) for column in inputs)
    for name in chosen:
        if name in targets:
            raise SpecError(f"column {name!r} is a target and cannot be an input")
    return [name for name in chosen if name not in ignored]


def _counters(frame: Frame, names: Sequence[str]) -> list[str]:
    """Return the columns that number the rows, such as pandas' index."""
    found = []
    for name in names:
        column = frame[name]
        whole = import_pandas().api.types.is_integer_dtype(column) and column.notna().all()
        if whole and ((column.diff()[1:] == 1).all() or (name == _INDEX and column.is_unique)):
            found.append(name)
    return found
