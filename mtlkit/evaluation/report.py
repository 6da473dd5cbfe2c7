"""One HTML file about a comparison: table, plots, configuration. It needs no network, no other file."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit._version import __version__
from mtlkit.evaluation import plots
from mtlkit.evaluation.plots import PALETTE, Boxes, Line, bar_chart, box_chart, dash, line_chart
from mtlkit.evaluation.results import Comparison, HistoryRow, MonitorRow, Run
from mtlkit.evaluation.statistics import confidence_band
from mtlkit.evaluation.tables import (
    DAGGER,
    Cell,
    Column,
    Table,
    build_table,
    format_number,
)
from mtlkit.files import write_text

__all__ = ["render_report", "write_report"]

_MANY_TASKS = 12


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report to ``path`` and return it."""
    write_text(path, render_report(comparison))
    return Path(path)


def render_report(comparison: Comparison) -> str:
    """The report as a string of HTML."""
    plots.restart_ids()
    table = build_table(comparison)
    sections = [
        _section("results", "Results", _table(table) + _notes(comparison, table)),
        _section("legend", "", _legend(comparison)),
        _section("tasks", "Results over seeds", _boxes(comparison)),
        _section("learning", "Learning curves", _learning(comparison)),
        _section("gradients", "Gradients", _gradients(comparison)),
        _section("time", "Time", _time(comparison)),
        _section("runs", "Runs", _runs(comparison)),
        _section("setup", "Configuration and versions", _setup(comparison)),
    ]
    title = html.escape(comparison.title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # an empty icon, since browsers would request one from the server otherwise
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{_style(comparison)}</style>\n</head>\n<body>\n"
        f"<header><h1>{title}</h1>{_headline(comparison, table)}</header>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n</main>\n<footer>mtlkit {html.escape(__version__)}</footer>\n"
        f"<script>{_resource('report.js')}</script>\n</body>\n</html>\n"
    )


def _section(name: str, title: str, content: str) -> str:
    if not content:
        return ""
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f'<section id="{name}">{heading}{content}</section>'


def _headline(comparison: Comparison, table: Table) -> str:
    seeds = sorted({run.seed for run in comparison.runs})
    done = sum(run.status == "done" for run in comparison.runs)
    facts = [
        _plural(len(comparison.labels), "method"),
        _plural(len(comparison.tasks), "task"),
        _plural(len(seeds), "seed"),
        f"{done} of {_plural(len(comparison.runs), 'run')} finished",
    ]
    text = f"<p>{' · '.join(facts)}</p>"
    best = [row for row in table.rows if "delta/mean" in row.cells and row.cells["delta/mean"].best]
    if best:
        gain = best[0].cells["delta/mean"].spread.median
        text += (
            f'<p class="lead">Best mean improvement over single-task networks: '
            f"<strong>{html.escape(best[0].label)}</strong>, {gain:+.2f} %.</p>"
        )
    return text


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _table(table: Table) -> str:
    groups: list[tuple[str, int]] = []
    for column in table.columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    upper = "".join(f'<th colspan="{n}" scope="colgroup">{html.escape(g)}</th>' for g, n in groups)
    heads = "".join(
        f'<th scope="col"><button type="button" data-better="{_better(column)}">'
        f"{html.escape(column.title)} <span>{column.arrow}</span></button></th>"
        for column in table.columns
    )
    rows = []
    for index, row in enumerate(table.rows):
        cells = "".join(_cell(row.cells[column.key], column) for column in table.columns)
        role = f' <small class="role">{row.role}</small>' if row.role else ""
        failed = f' <small class="failed">{row.failed} failed</small>' if row.failed else ""
        rows.append(
            f'<tr class="{row.role or "method"}"><th scope="row" data-value="{index}">'
            f'<i class="swatch m{index}"></i>{html.escape(row.label)}{role}{failed}</th>{cells}'
            f'<td data-value="{row.done}">{row.done}</td></tr>'
        )
    return (
        '<div class="scroll"><table id="table"><thead>'
        f'<tr><td></td>{upper}<td></td></tr><tr><th scope="col">'
        f'<button type="button" data-better="low">method</button></th>{heads}'
        '<th scope="col"><button type="button" data-better="high">runs</button></th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _better(column: Column) -> str:
    return "low" if column.higher_is_better is False else "high"


def _cell(cell: Cell, column: Column) -> str:
    median = cell.spread.median
    # an empty value sorts last in both directions
    value = repr(median) if math.isfinite(median) else ""
    text = html.escape(format_number(median, column.decimals))
    if cell.dagger:
        text += f"<sup>{DAGGER}</sup>"
    if not math.isnan(cell.spread.std):
        std = html.escape(format_number(cell.spread.std, column.decimals))
        text += f' <small class="std">±{std}</small>'
    hint = _plural(cell.spread.count, "seed")
    if cell.test is not None and not math.isnan(cell.test.p_value):
        hint += f", p = {cell.test.p_value:.3g}"
    classes = ' class="best"' if cell.best else ""
    return f'<td data-value="{value}"{classes} title="{hint}">{text}</td>'


def _notes(comparison: Comparison, table: Table) -> str:
    notes = [
        f"Median and standard deviation over seeds, on the {html.escape(comparison.split)} set. "
        "Bold: best of the column.",
    ]
    if table.reference is not None:
        notes.append(
            f"{DAGGER}: better than {html.escape(table.reference)} by a one-sided paired t-test over "
            "seeds at 0.05."
        )
    if comparison.baseline in comparison.labels:
        over = comparison.config.get("improvement_over")
        which = f" of {html.escape(', '.join(map(str, over)))}" if over else ""
        notes.append(
            f"Δ: relative improvement{which} over the single-task networks of the same seed, in "
            "percent, positive where better."
        )
    if any(column.key == "time" for column in table.columns):
        notes.append(
            "× step: time of a training step relative to "
            f"{html.escape(table.reference or 'the reference')}."
        )
    return f'<p class="notes">{" ".join(notes)} Click a heading to sort.</p>'


def _legend(comparison: Comparison) -> str:
    items = []
    for index, label in enumerate(comparison.labels):
        items.append(
            f'<button type="button" aria-pressed="true" data-method="{index}">'
            f'<svg width="26" height="10" aria-hidden="true"><path class="curve m{index}" '
            f'd="M1 5L25 5"/></svg>{html.escape(label)}</button>'
        )
    name = "Methods shown in the plots"
    return f'<div class="legend" role="group" aria-label="{name}">{"".join(items)}</div>'


def _grid(figures: Sequence[str], title: str = "", note: str = "", *, closed: bool = False) -> str:
    """Plots side by side; long or less important series are collapsed at first."""
    kept = [figure for figure in figures if figure]
    if not kept:
        return ""
    body = f'<div class="grid-of-plots">{"".join(kept)}</div>'
    note = f'<p class="notes">{html.escape(note)}</p>' if note else ""
    if title and (closed or len(kept) > _MANY_TASKS):
        return (
            f"<details><summary>{html.escape(title)} ({len(kept)} plots)</summary>{note}{body}</details>"
        )
    return (f"<h3>{html.escape(title)}</h3>" if title else "") + note + body


def _boxes(comparison: Comparison) -> str:
    def values(label: str, read: Callable[[Run], float]) -> list[float]:
        return [read(run) for run in comparison.of(label) if run.status == "done"]

    figures = []
    for task in comparison.tasks:
        metric = task.main_metric
        groups = [
            Boxes(index, label, values(label, lambda run: run.metric(task.name, metric)))  # noqa: B023
            for index, label in enumerate(comparison.labels)
        ]
        marker = None
        if comparison.baseline in comparison.labels:
            base = [v for v in values(str(comparison.baseline), lambda r: r.metric(task.name, metric))  # noqa: B023
                    if math.isfinite(v)]  # fmt: skip
            marker = float(np.median(base)) if base else None
        arrow = "higher is better" if task.higher_is_better else "lower is better"
        figures.append(box_chart(groups, task.name, f"{metric} ({arrow})", marker=marker))
    note = (
        "Box: quartiles; line: median; dots: seeds. Dashed: median of the single-task networks."
        if comparison.baseline in comparison.labels
        else "Box: quartiles; line: median; dots: seeds."
    )
    if len(figures) > _MANY_TASKS:
        return _grid(figures, "All tasks", note)
    return f'<p class="notes">{note}</p>' + _grid(figures)


def _learning(comparison: Comparison) -> str:
    blocks = []
    metric_figures = []
    for task in comparison.tasks:
        metric = task.main_metric

        def read_metric(row: HistoryRow, name: str = task.name, metric: str = metric) -> float:
            return row.metrics.get(name, {}).get(metric, math.nan)

        lines = _history_lines(comparison, "val", read_metric)
        axis = _axis(comparison, "val")
        metric_figures.append(line_chart(lines, task.name, axis, f"validation {metric}"))
    blocks.append(_grid(metric_figures, "Validation"))
    for split, title in (("train", "Training loss"), ("val", "Validation loss")):
        figures = []
        for task in comparison.tasks:

            def read_loss(row: HistoryRow, name: str = task.name) -> float:
                return row.losses.get(name, math.nan)

            lines = _history_lines(comparison, split, read_loss)
            positive = all((line.y[np.isfinite(line.y)] > 0).all() for line in lines)
            axis = _axis(comparison, split)
            figures.append(line_chart(lines, task.name, axis, "loss", log_y=positive))
        blocks.append(_grid(figures, title, closed=split == "val"))
    content = "".join(blocks)
    return f'<p class="notes">{_BAND_NOTE}</p>{content}' if content else ""


_BAND_NOTE = "Mean over seeds; shaded: 90 % confidence interval of the mean."


def _history_lines(
    comparison: Comparison, split: str, read: Callable[[HistoryRow], float]
) -> list[Line]:
    by_step = _axis(comparison, split) == "step"

    def points(run: Run) -> list[tuple[float, float]]:
        rows = [row for row in run.history if row.split == split]
        return [(float(row.step) if by_step else row.epoch, read(row)) for row in rows]

    return _mean_lines(comparison, points)


def _axis(comparison: Comparison, split: str) -> str:
    """``epoch``, or ``step`` where several rows of a run fall into one epoch."""
    for run in comparison.runs:
        epochs = [row.epoch for row in run.history if row.split == split]
        if len(set(epochs)) < len(epochs) or any(math.isnan(epoch) for epoch in epochs):
            return "step"
    return "epoch"


def _gradients(comparison: Comparison) -> str:
    def lines(read: Callable[[MonitorRow], float]) -> list[Line]:
        return _mean_lines(comparison, lambda run: [(float(row.step), read(row)) for row in run.monitor])

    overview = [
        line_chart(
            lines(lambda row: row.mean_cosine),
            "Cosine of task gradients with the update, mean over tasks",
            "step",
            "cosine",
        ),
        line_chart(lines(lambda row: row.conflict), "Pairs of tasks in conflict", "step", "share"),
        line_chart(
            lines(lambda row: _mean(row.rotation_angles.values())),
            "Angle of the rotations, mean over tasks",
            "step",
            "degrees",
        ),
    ]
    blocks = [_grid(overview)]
    series: list[tuple[str, str, str, bool]] = [
        ("update_cosines", "Cosine with the update, by task", "cosine", False),
        ("norms", "Gradient norms, by task", "norm", True),
        ("weights", "Weights, by task", "weight", False),
        ("rotation_angles", "Angle of the rotations, by task", "degrees", False),
    ]
    for attribute, title, y_label, log_y in series:
        figures = []
        for task in comparison.tasks:

            def read(row: MonitorRow, name: str = task.name, attribute: str = attribute) -> float:
                return float(getattr(row, attribute).get(name, math.nan))

            figures.append(line_chart(lines(read), task.name, "step", y_label, log_y=log_y))
        blocks.append(_grid(figures, title, closed=attribute in ("weights", "rotation_angles")))
    content = "".join(blocks)
    return f'<p class="notes">{_BAND_NOTE}</p>{content}' if content else ""


def _mean(values: Any) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _mean_lines(
    comparison: Comparison, points: Callable[[Run], list[tuple[float, float]]]
) -> list[Line]:
    """Each method's mean over seeds, with its band, on the union of its runs' points."""
    lines = []
    for index, label in enumerate(comparison.labels):
        runs = [dict(points(run)) for run in comparison.of(label)]
        places = sorted({x for run in runs for x in run})
        table = np.array([[run.get(x, math.nan) for x in places] for run in runs], dtype=np.float64)
        if not places or not np.isfinite(table).any():
            continue
        band = confidence_band(table, 0.9)
        lines.append(Line(index, label, np.array(places), band.mean, band.low, band.high))
    return lines


def _time(comparison: Comparison) -> str:
    ratios = [
        Boxes(index, label, [r.step_ratio for r in comparison.of(label) if r.step_ratio is not None])
        for index, label in enumerate(comparison.labels)
    ]
    durations = [
        Boxes(index, label, [r.seconds for r in comparison.of(label) if r.seconds is not None])
        for index, label in enumerate(comparison.labels)
    ]
    return _grid(
        [
            bar_chart(ratios, "Time of a step", f"× {comparison.reference or 'reference'}", marker=1.0),
            bar_chart(durations, "Time of a run", "seconds"),
        ]
    )


def _runs(comparison: Comparison) -> str:
    failed = [run for run in comparison.runs if run.status != "done"]
    items = "".join(
        f"<li><strong>{html.escape(run.label)}</strong>, seed {run.seed}: {html.escape(run.status)}"
        + (f" – <code>{html.escape(run.error)}</code>" if run.error else "")
        + "</li>"
        for run in failed
    )
    methods = {run.label: run.method for run in comparison.runs if run.method}
    rows = "".join(
        f'<tr><th scope="row">{html.escape(label)}</th>'
        f"<td><code>{html.escape(methods[label])}</code></td></tr>"
        for label in comparison.labels
        if label in methods
    )
    listing = f'<table class="facts"><tbody>{rows}</tbody></table>' if rows else ""
    return listing + (f"<h3>Not finished</h3><ul>{items}</ul>" if items else "")


def _setup(comparison: Comparison) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>'
        for name, value in comparison.versions.items()
    )
    versions = f'<table class="facts"><tbody>{rows}</tbody></table>' if rows else ""
    if not comparison.config:
        return versions
    text = json.dumps(comparison.config, indent=2, ensure_ascii=False, default=str)
    shown = f"<pre>{html.escape(text)}</pre>"
    return f"{versions}<details open><summary>Configuration</summary>{shown}</details>"


def _palette_slots(comparison: Comparison) -> list[int]:
    """Each method's place in the palette; the baseline takes the grey at its end."""
    size = len(PALETTE)
    slots = (slot for slot in count() if comparison.baseline is None or slot % size != size - 1)
    return [size - 1 if label == comparison.baseline else next(slots) for label in comparison.labels]


def _resource(name: str) -> str:
    return resources.files("mtlkit.evaluation").joinpath(name).read_text(encoding="utf-8")


def _style(comparison: Comparison) -> str:
    light = "".join(f"--c{i}:{a};" for i, (a, _) in enumerate(PALETTE))
    dark = "".join(f"--c{i}:{b};" for i, (_, b) in enumerate(PALETTE))
    colours = "".join(
        f".m{index}{{--c:var(--c{slot % len(PALETTE)})}}"
        f"body.off{index} figure .m{index}{{display:none}}"
        + (f".curve.m{index}{{stroke-dasharray:{dash(slot)}}}" if dash(slot) else "")
        for index, slot in enumerate(_palette_slots(comparison))
    )
    style = _resource("report.css")
    return style.replace("/* LIGHT */", light).replace("/* DARK */", dark) + colours
