"""The table of a comparison, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mtlkit.report.metric_table import PRIMARY, Column, collect_metrics
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Interval
from mtlkit.report.statistics import Spread, TTest, paired_t_test, spread
from mtlkit.report.verdict import Verdict, judge
from mtlkit.report.verdict_text import plural

DAGGER, DOUBLE_DAGGER, STAR = "†", "‡", "*"
MOST_DECIMALS = 6


@dataclass(frozen=True)
class Cell:
    """Median and deviation over seeds."""

    spread: Spread
    test: TTest | None = None
    """One-sided t-test against the reference, as in the RotoGrad paper."""
    claim: Interval | None = None
    """Difference to the reference with corrected limits; for the endpoint and main metrics only."""
    best: bool = False
    fewer: bool = False
    """Whether some seeds are missing."""

    @property
    def dagger(self) -> bool:
        """Whether the one-sided test finds it better than the reference."""
        return self.test is not None and self.test.significant

    @property
    def marks(self) -> str:
        """A dagger, or a double dagger if better after correction; a star if seeds are missing."""
        wins = self.claim is not None and self.claim.better
        return (DOUBLE_DAGGER if wins else DAGGER if self.dagger else "") + (STAR if self.fewer else "")


@dataclass(frozen=True)
class Row:
    """A method. ``role`` is ``baseline``, ``reference``, ``simple`` or empty."""

    label: str
    cells: dict[str, Cell]
    role: str
    done: int
    failed: int


@dataclass(frozen=True)
class ResultTable:
    """Rows of methods, columns of values."""

    columns: list[Column]
    rows: list[Row]
    reference: str | None
    improvement_over: tuple[str, ...] = ()
    """Tasks that the improvement is averaged over; empty for all."""
    verdict: Verdict = field(default_factory=Verdict)
    split: str = "test"
    """Data of the metrics."""
    notes: tuple[str, ...] = ()
    """Remarks about the rows."""


def build_table(comparison: Comparison, *, all_metrics: bool = False) -> ResultTable:
    """Build the table of a comparison: medians and deviations over seeds, and the verdict.

    Gains are relative to the baseline run of the same seed and averaged over the tasks of the setting
    ``improvement_over``, or all. A dagger marks results that are better than the reference by the
    RotoGrad paper's one-sided paired t-test, a double dagger those that are better by the corrected
    tests of :mod:`mtlkit.report.verdict`. The best median of each column, except the baseline's, is
    marked, too.

    Args:
        comparison: the runs.
        all_metrics: add a column for every metric, not only for the main one of each task.

    >>> from mtlkit.report import Comparison, Run, TaskRecord
    >>> tasks = [TaskRecord("left", {"accuracy": True})]
    >>> runs = [Run("sum", 0, metrics={"left": {"accuracy": 0.9}})]
    >>> table = build_table(Comparison("digits", tasks, runs))
    >>> format_cell(table.rows[0].cells["left/accuracy"], table.columns[0])
    '0.9000'
    """
    found = collect_metrics(comparison, all_metrics=all_metrics)
    verdict = judge(comparison, found)
    reference = comparison.reference if comparison.reference in found.values else None
    tested = [label for label in comparison.labels if label not in (reference, comparison.baseline)]
    rows = []
    for label in (*comparison.labels, *comparison.simple_labels):
        cells = {}
        for column in found.columns:
            test = None
            if reference is not None and label in tested and column.is_tested:
                pair = found.paired(label, reference, column.key)
                test = paired_t_test(*pair, bool(column.higher_is_better))
            values = spread(list(found.seeds(label, column.key).values()))
            if column.kind == "time" and values.std == 0:  # measured once, for all seeds
                values = Spread(values.median, math.nan, values.count)
            fewer = 0 < values.count < len(comparison.seeds)
            claim = verdict.intervals.get((label, column.key))
            cells[column.key] = Cell(values, test, claim, fewer=fewer)
        role = "baseline" if label == comparison.baseline else "reference" if label == reference else ""
        role = "simple" if label in comparison.simple_labels else role
        ends = [run.status for run in comparison.of(label)]
        rows.append(Row(label, cells, role, ends.count("done"), ends.count("failed")))
    _mark_best(found.columns, rows)
    return ResultTable(
        [_with_decimals(column, rows) for column in found.columns],
        rows,
        reference,
        tuple(comparison.config.get("improvement_over") or ()),
        verdict,
        comparison.split,
        _notes(comparison),
    )


def _with_decimals(column: Column, rows: list[Row]) -> Column:
    """Set the decimals for four digits of the largest value; improvements have two decimals."""
    if column.kind in ("gain", "time"):
        return column
    known = [abs(row.cells[column.key].spread.median) for row in rows]
    largest = max((value for value in known if math.isfinite(value)), default=1.0)
    decimals = 4 if largest < 1.5 else 3 if largest < 10 else 2 if largest < 100 else 1
    if 0 < largest < 0.1:
        decimals = 3 - math.floor(math.log10(largest))
    return replace(column, decimals=decimals)


def _mark_best(columns: list[Column], rows: list[Row]) -> None:
    """Mark the best median of each tested column, unless it has only one."""
    for column in (column for column in columns if column.is_tested):
        sign = 1 if column.higher_is_better else -1
        ranked = [
            (sign * row.cells[column.key].spread.median, row)
            for row in rows
            if row.role not in ("baseline", "simple")
            and math.isfinite(row.cells[column.key].spread.median)
        ]
        for value, row in ranked:
            if value == max(value for value, _ in ranked) and len(ranked) > 1:
                row.cells[column.key] = replace(row.cells[column.key], best=True)


def _notes(comparison: Comparison) -> tuple[str, ...]:
    """Return remarks on the cost of single-task networks, the use of the test set, and simple models."""
    notes = []
    number = len(comparison.tasks)
    if comparison.baseline in comparison.labels and number > 1:
        same = comparison.config.get("single_task") == "same_budget"
        steps = "the same number of" if same else f"{number} times the"
        notes.append(
            f"{comparison.baseline}: {number} networks, {number} times the parameters, {steps} steps."
        )
    epochs = comparison.config.get("test_last")
    if epochs:
        notes.append(
            f"Warning: test metrics are means over the last {epochs} epochs, as in published "
            "comparisons, and there is no validation set. Settings chosen by these results are chosen "
            "on the test set, so the results are too optimistic."
        )
    if comparison.simple_labels:
        notes.append(f"{', '.join(comparison.simple_labels)}: simple models, not networks; not tested.")
    return tuple(notes)


def format_number(value: float, decimals: int) -> str:
    """Format a number with fixed decimals, NaN as a dash, and long numbers with an exponent."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 1e5 or decimals > MOST_DECIMALS:
        return f"{value:.2e}" if value else "0"
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def format_cell(cell: Cell, column: Column) -> str:
    """Format a cell as ``0.9512 ± 0.0021‡``; one seed has no deviation."""
    text = format_number(cell.spread.median, column.decimals)
    if not math.isnan(cell.spread.std):
        text += f" ± {format_number(cell.spread.std, column.decimals)}"
    return text + cell.marks


def describe_marks(
    table: ResultTable, *, bold: bool = True, spread: bool = True, shown: Sequence[Column] | None = None
) -> str:
    """Return a legend of a table.

    Args:
        table: the table.
        bold: whether the best of each column is bold.
        spread: whether deviations are shown.
        shown: the columns that are shown; by default, all.
    """
    columns = table.columns if shown is None else shown
    text = f"Median{' ± standard deviation' if spread else ''} over seeds on the {table.split} set"
    text += "; the best method of each column is bold." if bold else "."
    if table.reference is not None and table.verdict.tests:
        text += (
            f" {DAGGER}: better than {table.reference} (one-sided paired t-test, level 0.05)."
            f" {DOUBLE_DAGGER}: better after correction for {plural(table.verdict.tests, 'test')} of "
            "the primary endpoint."
        )
    if any(row.cells[column.key].fewer for row in table.rows for column in columns):
        text += f" {STAR}: some seeds are missing."
    keys = {column.key for column in columns}
    if PRIMARY in keys:
        text += " Log-ratio: 100 times the logarithm of the ratio to the baseline, higher is better."
    if "delta/mean" in keys:
        which = f" of {', '.join(table.improvement_over)}" if table.improvement_over else ""
        text += f" Δ: improvement{which} over single-task networks of the same seed, in percent."
    if "delta_m" in keys:
        text += " Δm: mean change of all metrics in percent, lower is better."
    if any(column.kind == "time" for column in columns):
        text += f" × step: time of a training step relative to {table.reference or 'the reference'}."
    return " ".join([text, *table.notes])


def table_files(table: ResultTable) -> dict[str, str]:
    """Return the table in every format, by file name."""
    writers = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
    return {f"table.{name}": write(table) for name, write in writers.items()}


def to_markdown(table: ResultTable) -> str:
    """Return the verdict, the table in GitHub's Markdown, and a legend.

    >>> print(to_markdown(ResultTable([], [Row("sum", {}, "", 1, 0)], None)).splitlines()[2])
    | sum | 1 |
    """

    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")

    heads = ["method", *(escape(_head(column)) for column in table.columns), "runs"]
    lines = [f"| {' | '.join(heads)} |", f"|:--|{'--:|' * (len(heads) - 1)}"]
    for row in table.rows:
        failed = f" ({row.failed} failed)" if row.failed else ""
        texts = [*_texts(row, table, escape, "**{}**"), f"{row.done}{failed}"]
        lines.append(f"| {' | '.join(texts)} |")
    verdict = f"{escape(table.verdict.text)}\n\n" if table.verdict.text else ""
    return verdict + "\n".join(lines) + f"\n\n{describe_marks(table)}\n"


def to_latex(table: ResultTable) -> str:
    """Return a ``tabular`` for the package booktabs.

    >>> to_latex(ResultTable([], [Row("sum", {}, "", 1, 0)], None)).splitlines()[1]
    '\\\\begin{tabular}{l}'
    """
    heads = ["Method", *(_latex(_head(column)) for column in table.columns)]
    lines = [
        f"% {' '.join(line.split())}" for line in (table.verdict.text, describe_marks(table)) if line
    ]
    lines.append(r"\begin{tabular}{l" + "r" * len(table.columns) + "}")
    lines += [r"\toprule", " & ".join(heads) + r" \\", r"\midrule"]
    for row in table.rows:
        lines.append(" & ".join(_texts(row, table, _latex, r"\textbf{{{}}}")) + r" \\")
        if row.role == "baseline":
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _texts(row: Row, table: ResultTable, escape: Callable[[str], str], bold: str) -> list[str]:
    """Return the texts of a row's cells, the best ones in bold."""
    texts = [escape(row.label)]
    for column in table.columns:
        cell = row.cells[column.key]
        text = escape(format_cell(cell, column))
        texts.append(bold.format(text) if cell.best else text)
    return texts


_VALUES = ("seeds", "median", "std", "p", "p corrected", "difference", "low", "high")


def to_csv(table: ResultTable) -> str:
    """Return one line per method, with the values of each column at full precision.

    ``difference``, ``low`` and ``high`` are the mean of the paired differences to the reference and its
    corrected interval; ``p`` is one-sided, ``p corrected`` two-sided.

    >>> to_csv(ResultTable([], [Row("sum", {}, "", 1, 0)], None))
    'method,role,runs,failed\\nsum,,1,0\\n'
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = [f"{column.key} {name}" for column in table.columns for name in _VALUES]
    writer.writerow(["method", "role", "runs", "failed", *heads])
    for row in table.rows:
        line: list[str] = [row.label, row.role, str(row.done), str(row.failed)]
        for column in table.columns:
            cell = row.cells[column.key]
            claim = cell.claim or Interval()
            p_value = math.nan if cell.test is None else cell.test.p_value
            values = [cell.spread.median, cell.spread.std, p_value]
            values += [claim.p_value, claim.mean, claim.low, claim.high]
            line += [str(cell.spread.count), *map(_csv, values)]
        writer.writerow(line)
    return stream.getvalue()


def _head(column: Column) -> str:
    name = column.key.replace("/", " ") if column.kind == "metric" else column.title
    return f"{'step time' if column.kind == 'time' else name} {column.arrow}".strip()


def _csv(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


_LATEX: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "*": r"$^*$",
    "Δ": r"$\Delta$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "–": "--",
}


def _latex(text: str) -> str:
    return text.translate(str.maketrans(_LATEX))
