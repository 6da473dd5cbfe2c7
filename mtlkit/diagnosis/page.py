"""The HTML page of a diagnosis: findings, a table of the tasks, and charts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mtlkit.config.files import write_text
from mtlkit.diagnosis.groups import Array
from mtlkit.diagnosis.rules import Finding, name_pair, percent
from mtlkit.diagnosis.summary import Summary
from mtlkit.report.charts import Chart, Line, heat_chart, layer_chart, line_chart
from mtlkit.report.page import Cell, Charts, Head, Listing, Note, Section, render_page

_HELP = Note(
    "Help from other tasks: sum of the mean cosines with them. At equal gradient norms, they add this "
    "much to the decrease of a task's loss by its own gradient, to first order; at -100% they undo it."
)
_DIRECTIONS = (
    "Blue is agreement, red is conflict. Similarity does not depend on the initialization of the heads: "
    "it is 1 if the gradients of two tasks are equal up to a rotation, and about 0 for unrelated tasks."
)


def write_page(
    summary: Summary, findings: Sequence[Finding], facts: Sequence[str], path: str | os.PathLike[str]
) -> Path:
    """Write the page of a diagnosis and return its path."""
    first = findings[0]
    page = render_page(
        "Diagnosis",
        [
            Section("findings", "Findings", _findings(findings)),
            Section("tasks", "Tasks", [_task_table(summary), _HELP]),
            Section("sizes", "Losses and gradient norms", [Charts(_curves(summary))]),
            Section("directions", "Directions", [Charts(_directions(summary), note=_DIRECTIONS)]),
            Section("layers", "Conflicts by layer", [Charts([_layers(summary)])]),
        ],
        lead=[_sentence(f"{first.text}. Try: {first.advice}")],
        facts=facts,
        legend=summary.tasks,
    )
    write_text(path, page)
    return Path(path)


def _findings(findings: Sequence[Finding]) -> list[Note]:
    notes = []
    for number, finding in enumerate(findings, start=1):
        notes.append(Note(f"{number}. {_sentence(finding.text)}", important=True))
        notes.append(Note(_sentence(f"Try: {finding.advice}. Why: {finding.why}")))
    return notes


def _task_table(s: Summary) -> Listing:
    rows = [
        [
            Cell(task, series=k),
            _number(s.labeled_samples[k], "{:.0f}"),
            _number(s.loss_change[k, 0]),
            _number(s.loss_change[k, 1]),
            _number(s.typical_norms[k]),
            Cell(percent(s.help[k]), _known(s.help[k])),
        ]
        for k, task in enumerate(s.tasks)
    ]
    heads: list[Head | str] = ["task", "labeled samples", Head("first loss", "low")]
    heads += [Head("last loss", "low"), "gradient norm", "help from other tasks"]
    return Listing(heads, rows, name="task-table", sortable=len(rows) > 2)


def _curves(s: Summary) -> list[Chart | None]:
    steps = np.arange(1, s.steps + 1, dtype=np.float64)

    def chart(values: Array, title: str) -> Chart | None:
        lines = [Line(k, task, steps, values[:, k]) for k, task in enumerate(s.tasks)]
        positive = not (values[np.isfinite(values)] <= 0).any()
        return line_chart(lines, title, "step", title.lower(), log_y=positive)

    return [chart(s.norms, "Gradient norm"), chart(s.losses, "Loss")]


def _directions(s: Summary) -> list[Chart | None]:
    if len(s.tasks) < 2:
        return []
    shares = [["" if math.isnan(v) else f"{v:.0%}" for v in row] for row in s.conflict_share]
    order = [task for group in s.grouping.groups for task in group]
    similarity, names = s.similarity[np.ix_(order, order)], [s.tasks[k] for k in order]
    return [
        heat_chart(_off_diagonal(s.cosine), s.tasks, "Mean cosine"),
        heat_chart(-s.conflict_share, s.tasks, "Steps in conflict", texts=shares),
        heat_chart(_off_diagonal(similarity), names, "Similarity over samples, by group"),
    ]


def _layers(s: Summary) -> Chart | None:
    pairs = [name_pair(s, pair) for pair in s.pairs]
    return layer_chart(s.layers, pairs, "Mean cosine, by layer and pair of tasks")


def _off_diagonal(values: Array) -> Array:
    return np.where(np.eye(len(values), dtype=bool), np.nan, values)


def _number(value: float, form: str = "{:.3g}") -> Cell:
    return Cell(form.format(value) if math.isfinite(value) else "-", _known(value))


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _sentence(text: str) -> str:
    return (text[:1].upper() + text[1:]).replace("`", "") + "."
