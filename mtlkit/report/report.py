"""One HTML file about a comparison: verdict, table, charts, configuration. It needs no other file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

from mtlkit.config.files import write_text
from mtlkit.report.charts import Point, metric_bounds, point_chart
from mtlkit.report.costs import method_costs
from mtlkit.report.curves import gradient_section, learning_section
from mtlkit.report.figures import Column
from mtlkit.report.page import (
    MANY,
    Block,
    Cell,
    Charts,
    Code,
    Head,
    Listing,
    Note,
    Section,
    render_page,
)
from mtlkit.report.rankings import rank_section
from mtlkit.report.results import Comparison, Run
from mtlkit.report.row_charts import Interval, Sample, bar_chart, box_chart, interval_chart
from mtlkit.report.statistics import spread
from mtlkit.report.tables import Cell as TableCell
from mtlkit.report.tables import Table, build_table, describe_marks, format_number
from mtlkit.report.trade_offs import front_section


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report to ``path`` and return it."""
    write_text(path, render_report(comparison))
    return Path(path)


def render_report(comparison: Comparison) -> str:
    """The report as a string of HTML."""
    single = len(comparison.runs) == 1
    table = build_table(comparison, all_metrics=single)
    sections = [
        Section("results", "Results", result_blocks(comparison, table)),
        _differences(table),
        front_section(comparison),
        rank_section(comparison),
        _costs(comparison, table),
        Section("tasks", "Results over seeds", [] if single else [task_charts(comparison)]),
        learning_section(comparison),
        gradient_section(comparison),
        _runs(comparison),
        _setup(comparison),
    ]
    return render_page(
        comparison.title,
        sections,
        lead=table.verdict.sentences,
        facts=_facts(comparison),
        legend=comparison.labels,
        gray=comparison.baseline if comparison.baseline in comparison.labels else None,
    )


def _facts(comparison: Comparison) -> list[str]:
    runs = [run for run in comparison.runs if run.label in comparison.labels]
    done = sum(run.status == "done" for run in runs)
    facts = [
        _plural(len(comparison.labels), "method"),
        _plural(len(comparison.tasks), "task"),
        _plural(len(comparison.seeds), "seed"),
        f"{done} of {_plural(len(runs), 'run')} finished",
    ]
    if comparison.front_labels:
        facts.append(f"{_plural(len(comparison.front_labels), 'weighting')} of the sum")
    return facts


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def result_blocks(comparison: Comparison, table: Table, name: str = "table") -> list[Block]:
    """The table, and what its marks mean."""
    groups: list[tuple[str, int]] = [("", 1)]
    for column in table.columns:
        if groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    heads = [Head("method", "low")]
    for column in table.columns:
        better = "low" if column.higher_is_better is False else "high"
        heads.append(Head(f"{column.title} {column.arrow}".strip(), better))
    rows: list[list[Cell | str]] = []
    for index, row in enumerate(table.rows):
        notes = [row.role] if row.role else []
        notes += [f"{row.failed} failed"] if row.failed else []
        first = Cell(row.label, index, small=", ".join(notes), series=index)
        cells = [_cell(row.cells[column.key], column) for column in table.columns]
        rows.append([first, *cells, Cell(str(row.done), row.done)])
    listing = Listing([*heads, Head("runs")], rows, [*groups, ("", 1)], name)
    several = len(comparison.runs) > 1
    notes = [describe_marks(table) if several else f"All on the {table.split} set."]
    if any(column.kind == "time" for column in table.columns):
        notes.append(
            f"× step: time of a training step relative to {table.reference or 'the reference'}."
        )
    return [listing, Note(" ".join(notes))]


def _cell(cell: TableCell, column: Column) -> Cell:
    median, std = cell.spread.median, cell.spread.std
    hints = [_plural(cell.spread.count, "seed")]
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


def difference_charts(table: Table, *, tasks: bool = False) -> Charts:
    """Paired differences to the reference with their intervals: means over tasks, or of each task."""
    charts = []
    for column in table.columns:
        intervals = [
            Interval(index, row.label, claim.mean, claim.low, claim.high)
            for index, row in enumerate(table.rows)
            if (claim := row.cells[column.key].claim) is not None
        ]
        summary = column.kind in ("gain", "summary")
        if summary == tasks:
            continue
        unit = "points of log-ratio" if column.kind == "gain" else column.title
        label = f"better by, {unit}" if summary else f"{column.title}: better by"
        title = f"Mean over tasks, against {table.reference}" if summary else column.group
        charts.append(interval_chart(intervals, title, label))
    return Charts(charts, "By task" if tasks else "")


def _differences(table: Table) -> Section:
    groups = [difference_charts(table), difference_charts(table, tasks=True)]
    if not any(group.kept for group in groups):
        return Section("differences", "", [])
    note = Note(
        f"Mean of the differences to {table.reference} on the same seeds, to the right is better, with "
        "95 % intervals that hold for all methods together."
    )
    return Section("differences", f"Against {table.reference}", [note, *groups])


def _costs(comparison: Comparison, table: Table) -> Section:
    costs = method_costs(comparison)
    if not costs:
        return Section("cost", "", [])
    places = {label: index for index, label in enumerate(comparison.labels)}
    tuned = any(cost.trials for cost in costs)
    heads = [Head("method", "low"), Head("runs"), Head("seconds", "low"), Head("steps", "low")]
    if tuned:
        heads += [Head("trials", "low"), Head("tuning seconds", "low"), Head("tuning steps", "low")]
        heads += [Head("all seconds", "low"), Head("all steps", "low")]
    rows: list[list[Cell | str]] = []
    for cost in costs:
        figures: list[float] = [cost.runs, cost.seconds, cost.steps]
        if tuned:
            figures += [cost.trials, cost.tuning_seconds, cost.tuning_steps]
            figures += [cost.total_seconds, cost.total_steps]
        name = Cell(cost.label, places[cost.label], series=places[cost.label])
        rows.append([name, *(Cell(f"{value:,.0f}".replace(",", "\u202f"), value) for value in figures)])
    gains = {row.label: row.cells["delta/mean"].spread.median
             for row in table.rows if "delta/mean" in row.cells}  # fmt: skip
    points = [
        Point(places[cost.label], cost.label, cost.total_seconds, gains.get(cost.label, math.nan))
        for cost in costs
    ]
    what = "seconds of all runs" + (" and trials" if tuned else "")
    ratios = [
        Sample(index, label, [r.step_ratio for r in comparison.of(label) if r.step_ratio is not None])
        for label, index in places.items()
    ]
    seconds = [
        Sample(index, label, [r.seconds for r in comparison.of(label) if r.seconds is not None])
        for label, index in places.items()
    ]
    charts = [
        point_chart(points, "Improvement and cost", what, "mean improvement, %", x_bounds=(0.0, None)),
        bar_chart(ratios, "Time of a step", f"× {comparison.reference or 'reference'}", marker=1.0),
        bar_chart(seconds, "Time of a run", "seconds"),
    ]
    note = "Over all seeds; single-task: all networks together."
    note += "" if tuned else " No search for settings is recorded with this comparison."
    return Section("cost", "Cost", [Listing(heads, rows, name="costs"), Note(note), Charts(charts)])


def task_charts(comparison: Comparison) -> Charts:
    """The main metric of each task over seeds."""

    def values(label: str, read: Callable[[Run], float]) -> list[float]:
        return [read(run) for run in comparison.of(label) if run.status == "done"]

    charts = []
    for task in comparison.tasks:
        metric = task.main_metric

        def read(run: Run, name: str = task.name, metric: str = metric) -> float:
            return run.metric(name, metric)

        samples = [Sample(i, label, values(label, read)) for i, label in enumerate(comparison.labels)]
        marker = None
        if comparison.baseline in comparison.labels:
            marker = spread(values(str(comparison.baseline), read)).median
        arrow = "higher is better" if task.higher_is_better else "lower is better"
        label = f"{metric} ({arrow})"
        charts.append(box_chart(samples, task.name, label, marker=marker, bounds=metric_bounds(metric)))
    note = "Box: quartiles; line: median; dots: seeds."
    if comparison.baseline in comparison.labels:
        note += " Dashed: median of the single-task networks."
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
        blocks.append(Listing([Head("label", "low"), Head("method", "low")], rows))
    unfinished: list[list[Cell | str]] = [
        [Cell(run.label), Cell(str(run.seed), run.seed), Cell(run.status), Cell(run.error, code=True)]
        for run in comparison.runs
        if run.status != "done"
    ]
    if unfinished:
        blocks.append(Note("Not finished:", important=True))
        blocks.append(
            Listing([Head("label"), Head("seed", "low"), Head("status"), Head("why")], unfinished)
        )
    if comparison.recovered:
        names = ", ".join(f"{run.label} seed {run.seed}" for run in comparison.recovered)
        blocks.append(Note(f"Lost from results.jsonl and read from their result.json: {names}."))
    return Section("runs", "Runs", blocks)


def _setup(comparison: Comparison) -> Section:
    blocks: list[Listing | Code] = []
    if comparison.versions:
        rows: list[list[Cell | str]] = [
            [str(name), Cell(str(value), code=True)] for name, value in comparison.versions.items()
        ]
        blocks.append(Listing([Head("what", "low"), Head("version", "low")], rows))
    if comparison.config:
        text = json.dumps(comparison.config, indent=2, ensure_ascii=False, default=str)
        blocks.append(Code(text, "Configuration"))
    return Section("setup", "Configuration and versions", blocks)
