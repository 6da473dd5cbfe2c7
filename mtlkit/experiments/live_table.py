"""What a comparison shows while it runs: a live table on a terminal, else a line per finished run."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from mtlkit.experiments.jobs import Job, Outcome
from mtlkit.experiments.live_display import LiveDisplay
from mtlkit.report.results import Comparison
from mtlkit.report.tables import Table, build_table, describe_marks, format_cell

_MOST_METRICS = 8
_TAIL = 8192


class LiveTable(LiveDisplay):
    """Shows how far a comparison is.

    Args:
        comparison: with the runs that are finished; it grows.
        planned: number of trainings by label.
        shown: None shows a live table on a terminal and lines elsewhere; False shows nothing.
    """

    def __init__(
        self, comparison: Comparison, planned: dict[str, int], shown: bool | None = None
    ) -> None:
        self.comparison = comparison
        self.planned = planned
        self._ended = dict.fromkeys(planned, 0)
        self._errors: dict[str, str] = {}
        self._running: dict[str, tuple[Job, float]] = {}
        self._begun = time.monotonic()
        self._worked = 0
        super().__init__(shown)

    def found(self, job: Job) -> None:
        """A training that an earlier call finished."""
        self._ended[job.label] += 1

    def started(self, job: Job) -> None:
        """A training begins."""
        self.note("")
        self._running[job.folder] = (job, time.monotonic())

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A training ended."""
        _, begun = self._running.pop(job.folder, (job, time.monotonic()))
        self._ended[job.label] += 1
        self._worked += 1
        if outcome.error:
            self._errors[job.name] = outcome.error
        state = f"FAILED: {outcome.error}" if outcome.error else "done"
        done, total = sum(self._ended.values()), sum(self.planned.values())
        self.print_line(f"[{done}/{total}] {job.name}: {state} ({time.monotonic() - begun:.1f} s)")

    def render(self) -> Any:
        """The table so far, and what runs now."""
        from rich.console import Group
        from rich.text import Text

        done, total = sum(self._ended.values()), sum(self.planned.values())
        passed = time.monotonic() - self._begun
        head = f"{self.comparison.title}: {done} of {total} trainings, {clock(passed)}"
        if self._worked and done < total:
            head += f", about {clock(passed / self._worked * (total - done))} to go"
        lines: list[Any] = [Text(head, style="bold")]
        if self.comparison.runs:
            lines.append(render_table(build_table(self.comparison)))
        if self.current_note:
            lines.append(Text(self.current_note, style="dim"))
        for job, begun in list(self._running.values()):
            text = f"  {job.name}: {progress_of(job)}{clock(time.monotonic() - begun)}"
            lines.append(Text(text, style="dim"))
        for name, error in list(self._errors.items())[-4:]:
            lines.append(Text(f"  {name} failed: {error[:160]}", style="red"))
        return Group(*lines)


def render_table(table: Table) -> Any:
    """The table for a terminal: main metrics where they are few, improvements, time."""
    from rich.table import Table as RichTable
    from rich.text import Text

    metrics = [column for column in table.columns if column.kind == "metric"]
    shown = [c for c in table.columns if c not in metrics or len(metrics) <= _MOST_METRICS]
    made = RichTable(box=None, pad_edge=False, header_style="bold")
    made.add_column("method", no_wrap=True)
    for column in shown:
        name = f"{column.group} {column.title}" if column.kind == "metric" else column.title
        made.add_column(f"{name} {column.arrow}".strip(), justify="right")
    made.add_column("runs", justify="right")
    for row in table.rows:
        cells: list[Any] = [Text(row.label, style="dim" if row.role == "baseline" else "")]
        for column in shown:
            cell = row.cells[column.key]
            known = math.isfinite(cell.spread.median)
            style = "bold" if cell.best else "" if known else "dim"
            cells.append(Text(format_cell(cell, column), style=style))
        failed = f", {row.failed} failed" if row.failed else ""
        cells.append(Text(f"{row.done}{failed}", style="red" if row.failed else ""))
        made.add_row(*cells)
    return made


def print_table(table: Table) -> None:
    """Print the verdict, the table and what its marks mean to stdout."""
    from rich.console import Console
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=220)
    if table.verdict.text:
        console.print(Text(table.verdict.text, style="bold"))
    console.print(render_table(table))
    console.print(Text(describe_marks(table, bold=console.is_terminal), style="dim"))


def progress_of(job: Job) -> str:
    """The progress of a training, from the end of its log."""
    path = Path(job.folder) / "log.jsonl"
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            record = json.loads(line)
            epoch, step = record["epoch"], record["step"]
        except (ValueError, KeyError, TypeError):
            continue
        epochs = job.train.get("epochs")
        return f"epoch {epoch}{f' of {epochs}' if epochs else ''}, step {step}, "
    return ""


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
