"""Tables for a terminal of any width: columns that do not fit are dropped, numbers are never cut off."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtlkit.report.metric_table import PRIMARY, Column
from mtlkit.report.tables import ResultTable, Row, describe_marks, format_number
from mtlkit.report.verdict_text import plural

if TYPE_CHECKING:
    from mtlkit.experiments.tuning.ledger import Trial
    from mtlkit.experiments.tuning.spaces import MethodSpace

_WIDE = 160
"""Terminal width from which deviations and all statistics are shown."""
_GAP = 2
_LONGEST_LABEL = 36


def make_console() -> Any:
    """Return a console for stdout; the width of a pipe is ``COLUMNS``, or 160."""
    from rich.console import Console

    width = os.environ.get("COLUMNS", "")
    return Console() if sys.stdout.isatty() or width.isdigit() else Console(width=_WIDE)


def print_table(table: ResultTable) -> None:
    """Print the verdict, the table and a legend of its marks to stdout."""
    from rich.text import Text

    console = make_console()
    if table.verdict.text:
        console.print(Text(table.verdict.text, style="bold"))
    console.print(render_table(table, console.width))
    legend = describe_marks(
        table,
        bold=console.is_terminal,
        spread=console.width >= _WIDE,
        shown=_columns_that_fit(table, console.width),
    )
    console.print(Text(legend, style="dim"))


def render_table(table: ResultTable, width: int = _WIDE) -> Any:
    """Build the table of a comparison for a terminal with ``width`` columns.

    Below 160 columns it has medians without deviations and one statistic over tasks. If that is still
    too wide, the metrics of the last tasks are left out, and a line below counts them.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = _columns_that_fit(table, width)
    cells = {column.key: _texts(table.rows, column, width >= _WIDE) for column in shown}
    first, runs, room = _layout(table, width)
    dropped = len(_candidates(table, width)) - len(shown)
    widths = {c.key: max(_least(c, cells[c.key]), len(_head(c))) for c in shown}
    if sum(widths.values()) + _GAP * len(shown) > room:  # heads are folded
        widths = {c.key: _least(c, cells[c.key]) for c in shown}
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("method", width=first, overflow="fold")
    for column in shown:
        made.add_column(_head(column), justify="right", width=widths[column.key])
    made.add_column("runs", justify="right", no_wrap=True)
    for index, row in enumerate(table.rows):
        texts: list[Any] = [Text(row.label, style="dim" if row.role == "baseline" else "")]
        for column in shown:
            style = "bold" if row.cells[column.key].best else ""
            texts.append(Text(cells[column.key][index], style=style))
        made.add_row(*texts, Text(runs[index], style="red" if row.failed else ""))
    if not dropped:
        return made
    more = f"{plural(dropped, 'more column')} in a wider terminal, in table.md and table.csv"
    return Group(made, Text(more, style="dim"))


def _columns_that_fit(table: ResultTable, width: int) -> list[Column]:
    """Return the columns that are shown; the primary endpoint stays longest."""
    shown = _candidates(table, width)
    _, _, room = _layout(table, width)
    least = {c.key: _least(c, _texts(table.rows, c, width >= _WIDE)) + _GAP for c in shown}
    while sum(least[column.key] for column in shown) > room and len(shown) > 1:
        metrics = [column for column in shown if column.kind in ("metric", "time")]
        shown.remove(metrics[-1] if metrics else shown[-1])
    return shown


def _candidates(table: ResultTable, width: int) -> list[Column]:
    return [column for column in table.columns if width >= _WIDE or not _is_extra(column)]


def _layout(table: ResultTable, width: int) -> tuple[int, list[str], int]:
    """Return the width of the first column, the texts of the last, and the room between them."""
    labels = max([len("method"), *(len(row.label) for row in table.rows)])
    first = min(labels, _LONGEST_LABEL, max(width // 3, len("method")))
    runs = [f"{row.done}" + (f", {row.failed} failed" if row.failed else "") for row in table.rows]
    return first, runs, width - first - _GAP - max(map(len, [*runs, "runs"]))


def winners_table(
    trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, MethodSpace], count: int
) -> Any:
    """Build the table of a search: trials, best value and best settings of every method."""
    from rich.table import Table
    from rich.text import Text

    from mtlkit.experiments.tuning.ledger import best_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "trials", "improvement", "seconds", "best"):
        right = name in ("trials", "improvement", "seconds")
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for label, known in trials.items():
        ended = [trial for trial in known if trial.state != "running"]
        failed = sum(trial.state == "failed" for trial in ended)
        best = best_of(ended)
        table.add_row(
            label,
            Text(f"{len(ended)}/{count}" + (f", {failed} failed" if failed else "")),
            "" if best is None else f"{best.value:+.2f} %",
            f"{sum(trial.facts.get('seconds', 0.0) for trial in ended):.0f}",
            Text("" if best is None else describe_trial(best, spaces[label])),
        )
    return table


def describe_trial(trial: Trial, space: MethodSpace) -> str:
    """Return the config string of the method and the training settings, with three digits."""
    settings = [
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.point.items()
        if "." not in name
    ]
    return " ".join([space.method(trial.point), *settings])


def compact(value: float, decimals: int) -> str:
    """Format a number without a leading zero.

    >>> compact(0.331, 2), compact(-0.5, 1), compact(12.34, 1)
    ('.33', '-.5', '12.3')
    """
    text = format_number(value, decimals)
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _texts(rows: Sequence[Row], column: Column, spread: bool) -> list[str]:
    """Return the cells of a column, with as many decimals as its deviations justify."""
    known = [row.cells[column.key].spread for row in rows]
    deviations = [found.std for found in known if math.isfinite(found.std) and found.std > 0]
    decimals = column.decimals
    if deviations:
        decimals = min(decimals, max(0, -math.floor(math.log10(min(deviations)))))
    texts = []
    for row in rows:
        cell = row.cells[column.key]
        text = compact(cell.spread.median, decimals)
        if spread and not math.isnan(cell.spread.std):
            text += f"±{compact(cell.spread.std, decimals)}"
        texts.append(text + cell.marks)
    return texts


def _is_extra(column: Column) -> bool:
    """Return whether a column is a statistic over tasks other than the primary endpoint and the mean."""
    return column.kind in ("gain", "summary") and column.key not in (PRIMARY, "delta/mean", "over/mean")


def _head(column: Column) -> str:
    name = f"{column.group} {column.title}" if column.kind == "metric" else column.title
    return f"{name} {column.arrow}".strip()


def _least(column: Column, texts: Sequence[str]) -> int:
    return max(map(len, [*texts, *_head(column).split()]))
