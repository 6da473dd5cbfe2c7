"""The table of a comparison, and its Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field, replace

from mtlkit.report.claims import Claim, compare_methods, family
from mtlkit.report.figures import Column, collect_figures
from mtlkit.report.notes import cost_notes, with_length_note
from mtlkit.report.results import Comparison
from mtlkit.report.significance import Difference
from mtlkit.report.statistics import Spread, TTest, paired_t_test, spread
from mtlkit.report.verdict import Verdict, judge

DAGGER, DOUBLE_DAGGER, STAR = "†", "‡", "*"
MOST_DECIMALS = 6


@dataclass(frozen=True)
class Cell:
    """Median and deviation over seeds.

    Attributes:
        spread: over the runs that have a value.
        test: against the reference, where that makes sense.
        claim: the same with an interval, and corrected for the number of tests.
        best: of the column.
        fewer: over fewer seeds than the comparison has.
    """

    spread: Spread
    test: TTest | None = None
    claim: Claim | None = None
    best: bool = False
    fewer: bool = False

    @property
    def dagger(self) -> bool:
        """Whether it is better than the reference by the test alone."""
        return self.test is not None and self.test.significant

    @property
    def marks(self) -> str:
        """A double dagger where it is better after Holm's correction too; a star for fewer seeds."""
        wins = self.claim is not None and self.claim.wins
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
class Table:
    """Rows of methods, columns of figures."""

    columns: list[Column]
    rows: list[Row]
    reference: str | None
    improvement_over: tuple[str, ...] = ()
    """Tasks that the statistics of the improvement are taken over, where these are not all."""
    verdict: Verdict = field(default_factory=Verdict)
    tests: int = 0
    """Number of tests that Holm's correction is over."""
    split: str = "test"
    """What the metrics were measured on."""
    notes: tuple[str, ...] = ()
    """What else there is to know about the rows."""


def build_table(comparison: Comparison, *, all_metrics: bool = False, level: float = 0.05) -> Table:
    """Medians and deviations over seeds of test metrics and relative improvements, and the verdict.

    Improvements of a run are relative to the baseline's run with the same seed, so those of the
    baseline itself are 0; their statistics are taken over the tasks that the configuration names under
    ``improvement_over``, or over all. A dagger marks what is better than the reference by a one-sided
    paired t-test over seeds, a double dagger what is so after Holm's correction. The best median of each
    column, the baseline left out, is marked too.

    Args:
        comparison: the runs.
        all_metrics: a column for every metric, not only for the main one of each task.
        level: of the test.
    """
    figures = collect_figures(comparison, all_metrics=all_metrics)
    reference = comparison.reference if comparison.reference in figures.values else None
    tested = [label for label in comparison.labels if label not in (reference, comparison.baseline)]
    claims: dict[tuple[str, str], Claim] = {}
    if reference is not None:
        claims = compare_methods(figures, tested, reference, family(figures))
    rows = []
    for label in (*comparison.labels, *comparison.simple_labels):
        runs = comparison.of(label)
        cells = {}
        for column in figures.columns:
            test = None
            if reference is not None and label in tested and column.is_tested:
                pair = figures.paired(label, reference, column.key)
                test = paired_t_test(*pair, bool(column.higher_is_better), level)
            found = spread(list(figures.seeds(label, column.key).values()))
            if column.kind == "time" and found.std == 0:  # measured once, for all seeds
                found = Spread(found.median, math.nan, found.count)
            fewer = 0 < found.count < len(comparison.seeds)
            cells[column.key] = Cell(found, test, claims.get((label, column.key)), fewer=fewer)
        role = "baseline" if label == comparison.baseline else "reference" if label == reference else ""
        role = "simple" if label in comparison.simple_labels else role
        failed = sum(run.status == "failed" for run in runs)
        rows.append(Row(label, cells, role, sum(run.status == "done" for run in runs), failed))
    columns = [_with_decimals(column, rows) for column in figures.columns]
    return Table(
        columns,
        _mark_best(columns, rows),
        reference,
        tuple(comparison.config.get("improvement_over") or ()),
        with_length_note(judge(comparison, figures), comparison),
        sum(not math.isnan(claim.p_value) for claim in claims.values()),
        comparison.split,
        cost_notes(comparison),
    )


def _with_decimals(column: Column, rows: list[Row]) -> Column:
    """As many decimals as four digits of the largest value need; improvements have two."""
    if column.kind in ("gain", "time"):
        return column
    known = [abs(row.cells[column.key].spread.median) for row in rows]
    largest = max((value for value in known if math.isfinite(value)), default=1.0)
    decimals = 4 if largest < 1.5 else 3 if largest < 10 else 2 if largest < 100 else 1
    if 0 < largest < 0.1:
        decimals = 3 - math.floor(math.log10(largest))
    return replace(column, decimals=decimals)


def _mark_best(columns: list[Column], rows: list[Row]) -> list[Row]:
    cells = {row.label: dict(row.cells) for row in rows}
    for column in columns:
        if not column.is_tested:
            continue
        ranked = {
            row.label: row.cells[column.key].spread.median * (1 if column.higher_is_better else -1)
            for row in rows
            if row.role not in ("baseline", "simple")
            and math.isfinite(row.cells[column.key].spread.median)
        }
        if len(ranked) < 2:
            continue
        top = max(ranked.values())
        for label, value in ranked.items():
            if value == top:
                cells[label][column.key] = replace(cells[label][column.key], best=True)
    return [Row(row.label, cells[row.label], row.role, row.done, row.failed) for row in rows]


def format_number(value: float, decimals: int) -> str:
    """Fixed decimals; a dash for NaN; powers of ten for what would be too long."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 1e5 or decimals > MOST_DECIMALS:
        return f"{value:.2e}" if value else "0"
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def format_cell(cell: Cell, column: Column) -> str:
    """``0.9512 ± 0.0021‡``; the deviation is left out where there is one seed."""
    text = format_number(cell.spread.median, column.decimals)
    if not math.isnan(cell.spread.std):
        text += f" ± {format_number(cell.spread.std, column.decimals)}"
    return text + cell.marks


def _runs_text(row: Row) -> str:
    return f"{row.done}" + (f" ({row.failed} failed)" if row.failed else "")


def describe_marks(table: Table, *, bold: bool = True) -> str:
    """What the marks of a table mean; ``bold`` where the best of each column is."""
    text = f"Median ± standard deviation over seeds on the {table.split} set"
    text += "; the best method of each column is bold." if bold else "."
    if table.reference is not None:
        text += (
            f" {DAGGER}: better than {table.reference} (one-sided paired t-test, 0.05)."
            f" {DOUBLE_DAGGER}: also two-sided, after Holm's correction over {table.tests} tests."
        )
    if any(cell.fewer for row in table.rows for cell in row.cells.values()):
        text += f" {STAR}: over fewer seeds than others."
    if any(column.kind == "gain" for column in table.columns):
        which = f" of {', '.join(table.improvement_over)}" if table.improvement_over else ""
        text += f" Δ: improvement{which} over single-task networks of the same seed, in percent."
    return " ".join([text, *table.notes])


def table_files(table: Table) -> dict[str, str]:
    """The table in every format, by the name of its file."""
    return {
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "table.csv": to_csv(table),
    }


def to_markdown(table: Table) -> str:
    """The verdict, a table in GitHub's Markdown, and a line on what its marks mean."""

    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")

    heads = ["method", *(_head(column) for column in table.columns), "runs"]
    lines = [
        "| " + " | ".join(map(escape, heads)) + " |",
        "|" + "|".join([":--", *["--:"] * (len(heads) - 1)]) + "|",
    ]
    for row in table.rows:
        texts = [escape(row.label)]
        for column in table.columns:
            cell = row.cells[column.key]
            text = escape(format_cell(cell, column))
            texts.append(f"**{text}**" if cell.best else text)
        lines.append("| " + " | ".join([*texts, _runs_text(row)]) + " |")
    verdict = f"{escape(table.verdict.text)}\n\n" if table.verdict.text else ""
    return verdict + "\n".join(lines) + f"\n\n{describe_marks(table)}\n"


def to_latex(table: Table) -> str:
    """A ``tabular`` for the package booktabs."""
    heads = ["Method", *(_latex(_head(column)) for column in table.columns)]
    lines = [
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        texts = [_latex(row.label)]
        for column in table.columns:
            cell = row.cells[column.key]
            text = _latex(format_cell(cell, column))
            texts.append(rf"\textbf{{{text}}}" if cell.best else text)
        lines.append(" & ".join(texts) + r" \\")
        if row.role == "baseline":
            lines.append(r"\midrule")
    lines += [r"\bottomrule", r"\end{tabular}"]
    comments = [line for line in (table.verdict.text, describe_marks(table)) if line]
    return "".join(f"% {' '.join(line.split())}\n" for line in comments) + "\n".join(lines) + "\n"


_FIGURES = ("seeds", "median", "std", "p", "p holm", "difference", "low", "high")


def to_csv(table: Table) -> str:
    """One line per method: the figures of each column at full precision.

    ``difference``, ``low`` and ``high`` are the mean of the paired differences to the reference and its
    95 % interval, ``p holm`` is corrected.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = ["method", "role", "runs", "failed"]
    for column in table.columns:
        heads += [f"{column.key} {name}" for name in _FIGURES]
    writer.writerow(heads)
    for row in table.rows:
        line: list[str] = [row.label, row.role, str(row.done), str(row.failed)]
        for column in table.columns:
            cell = row.cells[column.key]
            values = [cell.spread.median, cell.spread.std]
            values.append(math.nan if cell.test is None else cell.test.p_value)
            claim = cell.claim or Claim(Difference())
            values += [claim.p_value, claim.difference.mean, claim.difference.low, claim.difference.high]
            line += [str(cell.spread.count), *map(_csv, values)]
        writer.writerow(line)
    return stream.getvalue()


def _head(column: Column) -> str:
    name = column.key.replace("/", " ") if column.kind == "metric" else column.title
    return f"{'step time' if column.kind == 'time' else name} {column.arrow}".strip()


def _csv(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
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
    return "".join(_LATEX.get(character, character) for character in text)
