"""The report of a comparison as one HTML file: verdict, table, charts, configuration."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
from pathlib import Path

import numpy as np

from mtlkit.config.files import write_text
from mtlkit.report.charts import Row, metric_bounds, row_chart
from mtlkit.report.costs import cost_section
from mtlkit.report.curves import gradient_section, learning_section
from mtlkit.report.metric_table import Column
from mtlkit.report.page import (
    MANY,
    Block,
    Cell,
    Charts,
    Code,
    Command,
    Head,
    Listing,
    Note,
    Section,
    Status,
    StatusList,
    render_page,
)
from mtlkit.report.published import published_section
from mtlkit.report.results import Comparison
from mtlkit.report.statistics import confidence_band
from mtlkit.report.tables import Cell as TableCell
from mtlkit.report.tables import ResultTable, build_table, describe_marks, format_number
from mtlkit.report.trade_offs import front_section, rank_section
from mtlkit.report.verdict_text import plural

_MOST_SEEDS = 30


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report and return its path.

    >>> import tempfile
    >>> from mtlkit.report import Comparison, Run, TaskRecord
    >>> run = Run("sum", 0, metrics={"digit": {"accuracy": 0.9}})
    >>> comparison = Comparison("One run", [TaskRecord("digit", {"accuracy": True})], [run])
    >>> write_report(comparison, tempfile.mkdtemp() + "/report.html").name
    'report.html'
    """
    write_text(path, render_report(comparison, Path(path).parent))
    return Path(path)


def render_report(comparison: Comparison, folder: Path | None = None) -> str:
    """Return the report as a string of HTML.

    >>> from mtlkit.report import Comparison, TaskRecord
    >>> page = render_report(Comparison("Nothing yet", [TaskRecord("digit", {"accuracy": True})]))
    >>> "Nothing yet" in page
    True

    ``folder`` is that of the comparison, for the command that the report suggests.
    """
    single = len(comparison.runs) == 1
    table = build_table(comparison, all_metrics=single)
    sections = [
        Section("results", "Results", result_blocks(comparison, table)),
        _differences(table),
        published_section(comparison, table),
        front_section(comparison),
        rank_section(comparison),
        cost_section(comparison, table),
        Section("tasks", "Results over seeds", [] if single else [task_charts(comparison)]),
        learning_section(comparison),
        gradient_section(comparison),
        _runs(comparison),
        _setup(comparison),
    ]
    return render_page(
        comparison.title,
        sections,
        lead=[*verdict_blocks(comparison, table), *next_command(comparison, table, folder)],
        facts=_facts(comparison),
        legend=comparison.labels,
        gray=comparison.baseline if comparison.baseline in comparison.labels else None,
    )


def _facts(comparison: Comparison) -> list[str]:
    runs = [run for run in comparison.runs if run.label in comparison.labels]
    done = sum(run.status == "done" for run in runs)
    facts = [
        plural(len(comparison.labels), "method"),
        plural(len(comparison.tasks), "task"),
        plural(len(comparison.seeds), "seed"),
        f"{done} of {plural(len(runs), 'run')} finished",
    ]
    if comparison.front_labels:
        facts.append(f"{plural(len(comparison.front_labels), 'weighting')} of the sum")
    return facts


def verdict_blocks(comparison: Comparison, table: ResultTable) -> list[Block]:
    """Return the verdict: a status of each method against the reference, and sentences."""
    verdict = table.verdict
    items = [
        Status(each.method, each.status, f"{each.details}.", comparison.labels.index(each.method))
        for status in ("better", "worse", "level", "not decided", "not tested")
        for each in verdict.findings
        if each.status == status
    ]
    if not items:
        return [Note(sentence, important=True) for sentence in verdict.sentences]
    listed = ("Better than", "Worse than", "Level with", "Not tested")
    sentences = [Note(each) for each in verdict.sentences if not each.startswith(listed)]
    heading = Note(f"Against {table.reference}, by the primary endpoint:", important=True)
    return [heading, StatusList(items), *sentences]


def next_command(comparison: Comparison, table: ResultTable, folder: Path | None) -> list[Block]:
    """Suggest a command for the comparison in ``folder``: more seeds if undecided, or else tuning."""
    seeds, data = comparison.seeds, comparison.config.get("data")
    undecided, better = (table.verdict.labels(status) for status in ("not decided", "better"))
    if len(comparison.labels) < 2:
        return []
    settings = None if folder is None else folder / "compare.yaml"
    more = list(range(max(seeds) + 1, max(seeds) + 1 + len(seeds)))
    if settings is not None and settings.is_file() and undecided and len(seeds) < _MOST_SEEDS:
        command = ["-c", str(settings), "-o", str(folder)]
        command += ["--seeds", ",".join(map(str, [*seeds, *more]))]
        why = f"Next: double the number of seeds to decide on {', '.join(undecided[:3])}."
        return [Command(shlex.join(["mtlkit", "compare", *command]), why)]
    if data is not None and not comparison.tuning:
        methods = {run.label: run.method for run in comparison.runs if run.kind == ""}
        chosen = [label for label in (comparison.reference, *better[:3]) if label in methods]
        names = ",".join(methods[str(label)] for label in chosen) or "sum"
        command = ["--data", str(data), "--methods", names, "-o", "runs/tune"]
        why = "Next: tune every method, and the weights of the sum, with the same effort."
        return [Command(shlex.join(["mtlkit", "tune", *command]), why)]
    return []


def result_blocks(comparison: Comparison, table: ResultTable, name: str = "table") -> list[Block]:
    """Return the table and a legend of its marks."""
    grouped = itertools.groupby(table.columns, key=lambda column: column.group)
    groups = [("", 1), *((name, len(list(columns))) for name, columns in grouped), ("", 1)]
    heads = [Head("method", "low")]
    for column in table.columns:
        better = "low" if column.higher_is_better is False else "high"
        title = column.title.removeprefix("Δ ")  # the heading of the group has it
        heads.append(Head(f"{title} {column.arrow}".strip(), better))
    rows: list[list[Cell | str]] = []
    for index, row in enumerate(table.rows):
        notes = [row.role] if row.role else []
        notes += [f"{row.failed} failed"] if row.failed else []
        first = Cell(row.label, index, small=", ".join(notes), series=index)
        cells = [_cell(row.cells[column.key], column) for column in table.columns]
        rows.append([first, *cells, Cell(str(row.done), row.done)])
    listing = Listing([*heads, Head("runs")], rows, groups, name, sortable=len(rows) > 2)
    several = len(comparison.runs) > 1
    return [listing, Note(describe_marks(table) if several else f"All on the {table.split} set.")]


def _cell(cell: TableCell, column: Column) -> Cell:
    median, std = cell.spread.median, cell.spread.std
    hints = [plural(cell.spread.count, "seed")]
    if cell.test is not None and not math.isnan(cell.test.p_value):
        hints.append(f"one-sided p = {cell.test.p_value:.3g}")
    if cell.claim is not None and not math.isnan(cell.claim.p_value):
        found = cell.claim
        hints.append(f"better by {found.mean:.3g} (corrected: {found.low:.3g} to {found.high:.3g})")
        hints.append(f"two-sided p = {found.p_value:.3g} after correction")
    return Cell(
        format_number(median, column.decimals),
        median if math.isfinite(median) else None,
        small="" if math.isnan(std) else f"±{format_number(std, column.decimals)}",
        mark=cell.marks,
        hint=", ".join(hints),
        best=cell.best,
    )


def difference_charts(table: ResultTable, *, tasks: bool = False) -> Charts:
    """Draw paired differences to the reference with intervals: of summaries, or of each task."""
    charts = []
    for column in table.columns:
        rows = [
            Row(index, row.label, claim.mean, claim.low, claim.high)
            for index, row in enumerate(table.rows)
            if (claim := row.cells[column.key].claim) is not None
        ]
        summary = column.kind in ("gain", "summary")
        if summary == tasks:
            continue
        unit = f"points of {column.title}" if column.kind == "gain" else column.title
        label = f"better by, {unit}" if summary else f"{column.title}: better by"
        title = f"Mean over tasks, against {table.reference}" if summary else column.group
        charts.append(row_chart(rows, title, label, marker=0.0))
    return Charts(charts, "By task" if tasks else "")


def _differences(table: ResultTable) -> Section:
    groups = [difference_charts(table), difference_charts(table, tasks=True)]
    if not any(group.kept for group in groups):
        return Section("differences", "", [])
    note = Note(
        f"Mean differences from {table.reference} on the same seeds, with better to the right and "
        "95% intervals that hold for all methods together."
    )
    return Section("differences", f"Against {table.reference}", [note, *groups])


def task_charts(comparison: Comparison) -> Charts:
    """Draw the main metric of each task: a ring per seed, the mean and its 95% interval."""
    charts = []
    for task in comparison.tasks:
        rows = []
        for series, label in enumerate(comparison.labels):
            runs = [run for run in comparison.of(label) if run.status == "done"]
            values = [run.metric(task.name, task.main_metric) for run in runs]
            if values:
                band = confidence_band(np.array(values)[:, None], 0.95)
                mean, low, high = (float(each[0]) for each in (band.mean, band.low, band.high))
                rows.append(Row(series, label, mean, low, high, values))
        marker = next((row.mean for row in rows if row.label == comparison.baseline), None)
        arrow = "higher is better" if task.higher_is_better else "lower is better"
        bounds = metric_bounds(task.main_metric)
        label = f"{task.main_metric} ({arrow})"
        charts.append(row_chart(rows, task.name, label, marker=marker, bounds=bounds))
    note = "Each ring is a seed; the large mark with its bar is the mean with its 95% interval."
    if comparison.baseline in comparison.labels:
        note += " The dashed line is the mean of the single-task networks."
    return Charts(charts, "All tasks" if len(charts) > MANY else "", note)


def _runs(comparison: Comparison) -> Section:
    methods = {run.label: run.method for run in comparison.runs if run.method}
    rows = [
        [Cell(label, index, series=index), Cell(methods[label], code=True)]
        for index, label in enumerate(comparison.labels)
        if label in methods
    ]
    blocks: list[Listing | Note] = []
    if rows:
        blocks.append(Listing(["label", "method"], rows))
    unfinished: list[list[Cell | str]] = [
        [Cell(run.label), Cell(str(run.seed)), Cell(run.status), Cell(run.error, code=True)]
        for run in comparison.runs
        if run.status != "done"
    ]
    if unfinished:
        blocks.append(Note("Not finished:", important=True))
        blocks.append(Listing(["label", "seed", "status", "why"], unfinished))
    if comparison.recovered:
        names = ", ".join(f"{run.label} seed {run.seed}" for run in comparison.recovered)
        blocks.append(Note(f"Missing from results.jsonl and recovered from result.json: {names}."))
    return Section("runs", "Runs", blocks)


def _setup(comparison: Comparison) -> Section:
    blocks: list[Listing | Code] = []
    if comparison.versions:
        rows: list[list[Cell | str]] = [
            [str(name), Cell(str(value), code=True)] for name, value in comparison.versions.items()
        ]
        blocks.append(Listing(["package", "version"], rows))
    if comparison.config:
        text = json.dumps(comparison.config, indent=2, ensure_ascii=False, default=str)
        blocks.append(Code(text, "Configuration"))
    return Section("setup", "Configuration and versions", blocks)
