"""The table of a comparison, and its Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from mtlkit.evaluation.results import Comparison, Run
from mtlkit.evaluation.statistics import (
    Spread,
    TTest,
    paired_t_test,
    spread,
    task_improvement,
    task_statistics,
)

__all__ = [
    "Cell",
    "Column",
    "Row",
    "Table",
    "build_table",
    "table_files",
    "to_csv",
    "to_latex",
    "to_markdown",
]

DAGGER = "†"
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "minimum": "min",
    "maximum": "max",
    "std": "std",
}


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        key: unique, for CSV.
        group: heading above, the task's name.
        title: heading.
        higher_is_better: None where neither is.
        decimals: digits behind the point.
    """

    key: str
    group: str
    title: str
    higher_is_better: bool | None
    decimals: int = 2

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]


@dataclass(frozen=True)
class Cell:
    """Median and deviation over seeds; ``test`` against the reference, where that makes sense."""

    spread: Spread
    test: TTest | None = None
    best: bool = False

    @property
    def dagger(self) -> bool:
        """Whether it is significantly better than the reference."""
        return self.test is not None and self.test.significant


@dataclass(frozen=True)
class Row:
    """A method. ``role`` is ``baseline``, ``reference`` or empty."""

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


def build_table(comparison: Comparison, *, all_metrics: bool = False, level: float = 0.05) -> Table:
    """Medians and deviations over seeds of test metrics and relative improvements.

    Improvements of a run are relative to the baseline's run with the same seed, so those of the
    baseline itself are 0; their statistics are taken over the tasks that the configuration names under
    ``improvement_over``, or over all. A dagger marks what is better than the reference by a one-sided
    paired t-test over seeds. The best median of each column, the baseline left out, is marked too.

    Args:
        comparison: the runs.
        all_metrics: a column for every metric, not only for the main one of each task.
        level: of the test.
    """
    values: dict[str, dict[str, dict[int, float]]] = {label: {} for label in comparison.labels}
    columns = _metric_columns(comparison, all_metrics, values)
    if comparison.baseline in comparison.labels:
        columns += _improvement_columns(comparison, values)
    else:
        columns += _task_columns(comparison, values)
    columns += _time_column(comparison, values)
    reference = comparison.reference if comparison.reference in values else None
    rows = []
    for label in comparison.labels:
        runs = comparison.of(label)
        cells = {}
        for column in columns:
            seeds = values[label].get(column.key, {})
            test = None
            tested = column.higher_is_better is not None and column.key != "time"
            if reference is not None and label not in (reference, comparison.baseline) and tested:
                against = values[reference].get(column.key, {})
                shared = sorted(set(seeds) & set(against))
                test = paired_t_test(
                    [seeds[seed] for seed in shared],
                    [against[seed] for seed in shared],
                    bool(column.higher_is_better),
                    level,
                )
            found = spread(list(seeds.values()))
            if column.key == "time" and found.std == 0:  # measured once, for all seeds
                found = Spread(found.median, math.nan, found.count)
            cells[column.key] = Cell(found, test)
        role = "baseline" if label == comparison.baseline else "reference" if label == reference else ""
        failed = sum(run.status == "failed" for run in runs)
        rows.append(Row(label, cells, role, sum(run.status == "done" for run in runs), failed))
    columns = [_with_decimals(column, rows) for column in columns]
    over = tuple(comparison.config.get("improvement_over") or ())
    return Table(columns, _mark_best(columns, rows), reference, over)


def _metric_columns(
    comparison: Comparison, all_metrics: bool, values: dict[str, dict[str, dict[int, float]]]
) -> list[Column]:
    columns = []
    for task in comparison.tasks:
        for metric in task.metrics if all_metrics else (task.main_metric,):
            key = f"{task.name}/{metric}"
            columns.append(Column(key, task.name, metric, task.metrics.get(metric, False)))
            for run in _finished(comparison):
                values[run.label].setdefault(key, {})[run.seed] = run.metric(task.name, metric)
    return columns


def _improvement_columns(
    comparison: Comparison, values: dict[str, dict[str, dict[int, float]]]
) -> list[Column]:
    """Improvement per task where it is the mean of several metrics, then statistics over tasks."""
    assert comparison.baseline is not None
    several = [task for task in comparison.tasks if len(task.directions) > 1]
    columns = [
        Column(f"delta/task/{task.name}", "Δ per task", f"Δ {task.name}", True) for task in several
    ]
    for name, title in _STATISTICS.items():
        better = None if name == "std" else True
        columns.append(Column(f"delta/{name}", "Δ over tasks, %", f"Δ {title}", better))
    over = comparison.config.get("improvement_over")
    for run in _finished(comparison):
        single = comparison.find(comparison.baseline, run.seed)
        gains = {
            task.name: math.nan
            if single is None or single.status == "failed"
            else task_improvement(
                run.metrics.get(task.name, {}), single.metrics.get(task.name, {}), task.directions
            )
            for task in comparison.tasks
        }
        found = task_statistics([gain for name, gain in gains.items() if over is None or name in over])
        row = values[run.label]
        for task in several:
            row.setdefault(f"delta/task/{task.name}", {})[run.seed] = gains[task.name]
        for name in _STATISTICS:
            row.setdefault(f"delta/{name}", {})[run.seed] = getattr(found, name)
    return columns


def _task_columns(
    comparison: Comparison, values: dict[str, dict[str, dict[int, float]]]
) -> list[Column]:
    """Statistics over tasks of the metric itself, where there is no baseline and all have the same."""
    metrics = {(task.main_metric, task.higher_is_better) for task in comparison.tasks}
    if len(metrics) != 1 or len(comparison.tasks) < 3:
        return []
    ((metric, higher),) = metrics
    for run in _finished(comparison):
        found = task_statistics([run.metric(task.name, metric) for task in comparison.tasks])
        for name in _STATISTICS:
            values[run.label].setdefault(f"over/{name}", {})[run.seed] = getattr(found, name)
    return [
        Column(f"over/{name}", "over tasks", f"{metric} {title}", None if name == "std" else higher)
        for name, title in _STATISTICS.items()
    ]


def _time_column(comparison: Comparison, values: dict[str, dict[str, dict[int, float]]]) -> list[Column]:
    timed = [run for run in _finished(comparison) if run.step_ratio is not None]
    for run in timed:
        values[run.label].setdefault("time", {})[run.seed] = float(run.step_ratio or math.nan)
    return [Column("time", "Time", "× step", False)] if timed else []


def _finished(comparison: Comparison) -> list[Run]:
    return [run for run in comparison.runs if run.status == "done"]


def _with_decimals(column: Column, rows: list[Row]) -> Column:
    """As many decimals as four digits of the largest value need; improvements have two."""
    if column.key.startswith("delta/") or column.key == "time":
        return column
    known = [abs(row.cells[column.key].spread.median) for row in rows]
    largest = max((value for value in known if math.isfinite(value)), default=1.0)
    decimals = 4 if largest < 1.5 else 3 if largest < 10 else 2 if largest < 100 else 1
    return Column(column.key, column.group, column.title, column.higher_is_better, decimals)


def _mark_best(columns: list[Column], rows: list[Row]) -> list[Row]:
    cells = {row.label: dict(row.cells) for row in rows}
    for column in columns:
        if column.higher_is_better is None or column.key == "time":
            continue
        ranked = {
            row.label: row.cells[column.key].spread.median * (1 if column.higher_is_better else -1)
            for row in rows
            if row.role != "baseline" and math.isfinite(row.cells[column.key].spread.median)
        }
        if len(ranked) < 2:
            continue
        top = max(ranked.values())
        for label, value in ranked.items():
            if value == top:
                old = cells[label][column.key]
                cells[label][column.key] = Cell(old.spread, old.test, best=True)
    return [Row(row.label, cells[row.label], row.role, row.done, row.failed) for row in rows]


def format_number(value: float, decimals: int) -> str:
    """Fixed decimals; a dash for NaN; powers of ten for what would be too long."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 1e5:
        return f"{value:.2e}"
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def format_cell(cell: Cell, column: Column) -> str:
    """``0.9512 ± 0.0021†``; the deviation is left out where there is one seed."""
    text = format_number(cell.spread.median, column.decimals)
    if not math.isnan(cell.spread.std):
        text += f" ± {format_number(cell.spread.std, column.decimals)}"
    return text + (DAGGER if cell.dagger else "")


def _runs_text(row: Row) -> str:
    return f"{row.done}" + (f" ({row.failed} failed)" if row.failed else "")


def _legend(table: Table) -> str:
    text = "Median ± standard deviation over seeds; the best of each column is bold."
    if table.reference is not None:
        text += f" {DAGGER}: better than {table.reference} (one-sided paired t-test, 0.05)."
    if table.improvement_over:
        text += f" Δ over tasks: of {', '.join(table.improvement_over)}."
    return text


def table_files(table: Table) -> dict[str, str]:
    """The table in every format, by the name of its file."""
    return {
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "table.csv": to_csv(table),
    }


def to_markdown(table: Table) -> str:
    """A table in GitHub's Markdown, with a line on what the marks mean."""

    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|")

    heads = ["method", *(_head(column) for column in table.columns), "runs"]
    lines = [
        "| " + " | ".join(map(escape, heads)) + " |",
        "|" + "|".join([":--", *["--:"] * (len(heads) - 1)]) + "|",
    ]
    for row in table.rows:
        texts = [escape(row.label)]
        for column in table.columns:
            cell = row.cells[column.key]
            text = format_cell(cell, column)
            texts.append(f"**{text}**" if cell.best else text)
        lines.append("| " + " | ".join([*texts, _runs_text(row)]) + " |")
    return "\n".join(lines) + f"\n\n{_legend(table)}\n"


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
    return f"% {_legend(table)}\n" + "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One line per method: median, deviation and p-value of each column, at full precision."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = ["method", "role", "runs", "failed"]
    for column in table.columns:
        heads += [f"{column.key} median", f"{column.key} std", f"{column.key} p"]
    writer.writerow(heads)
    for row in table.rows:
        line: list[str] = [row.label, row.role, str(row.done), str(row.failed)]
        for column in table.columns:
            cell = row.cells[column.key]
            p_value = math.nan if cell.test is None else cell.test.p_value
            line += [_csv(cell.spread.median), _csv(cell.spread.std), _csv(p_value)]
        writer.writerow(line)
    return stream.getvalue()


def _head(column: Column) -> str:
    name = column.title if column.key.startswith(("delta/", "over/")) else column.key.replace("/", " ")
    return f"{'step time' if column.key == 'time' else name} {column.arrow}".strip()


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
    "Δ": r"$\Delta$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "–": "--",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
