"""The page of a diagnosis: findings, a table of the tasks, and drawings."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mtlkit.config.files import write_text
from mtlkit.diagnosis.affinity import GROUP_COSINE, tree
from mtlkit.diagnosis.figures import Figures
from mtlkit.diagnosis.measure import Array
from mtlkit.diagnosis.sentences import share
from mtlkit.report.charts import Chart, Line, heat_chart, line_chart, shorten
from mtlkit.report.page import Cell, Charts, Head, Listing, Note, Section, render_page

if TYPE_CHECKING:
    from mtlkit.diagnosis.result import Diagnosis

_ROW = 28


def write_page(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Path:
    """Write the page of a diagnosis; gives its path."""
    target = Path(path)
    write_text(target, _page(diagnosis))
    return target


def _page(diagnosis: Diagnosis) -> str:
    figures = diagnosis.figures
    first = diagnosis.findings[0]
    return render_page(
        "Diagnosis",
        [
            Section("findings", "What was found, and what to try", _findings(diagnosis)),
            Section("tasks", "Tasks", [_task_table(figures), _OTHERS]),
            Section("sizes", "Sizes over time", [Charts(_curves(figures))]),
            Section("directions", "Directions", [Charts(_directions(figures), note=_DIRECTIONS)]),
        ],
        lead=[_plain(f"{_sentence(first.figure)} Try {first.advice}.")],
        facts=diagnosis.facts(),
        legend=figures.tasks,
    )


_OTHERS = Note(
    "Others bring: what the other tasks together add to the decrease of a task's loss, over what the "
    "task adds itself, to first order. Below -100 % they raise the loss."
)
_DIRECTIONS = (
    "Affinity: what the column's task adds to the decrease of the row's loss, over what the row's task "
    "adds itself. Blue is help, red is conflict. Agreement is the cosine over the whole run; the dashed "
    "line parts the groups."
)


def _findings(diagnosis: Diagnosis) -> list[Note]:
    notes = []
    for number, finding in enumerate(diagnosis.findings, start=1):
        notes.append(Note(f"{number}. {_sentence(finding.figure)}", important=True))
        notes.append(Note(_plain(f"Try {_sentence(finding.advice, capital=False)} Why: {finding.why}.")))
    return notes


def _task_table(f: Figures) -> Listing:
    rows = []
    for k, task in enumerate(f.tasks):
        first, last = f.loss_change[k]
        rows.append(
            [
                Cell(task, series=k),
                _number(f.labeled_samples[k], "{:.0f}"),
                _number(first),
                _number(last),
                _number(f.typical_norms[k]),
                Cell(share(f.effect[k], "+"), _known(f.effect[k])),
            ]
        )
    losses = Head("loss at first", "low"), Head("loss at last", "low")
    heads: list[Head | str] = ["task", "labeled samples", *losses, "gradient norm", "others bring"]
    return Listing(heads, rows, name="task-table")


def _curves(f: Figures) -> list[Chart | None]:
    steps = np.arange(1, f.steps + 1, dtype=np.float64)

    def chart(values: Array, title: str) -> Chart | None:
        lines = [Line(k, task, steps, values[:, k]) for k, task in enumerate(f.tasks)]
        positive = not (values[np.isfinite(values)] <= 0).any()
        return line_chart(lines, title, "step", title.lower(), log_y=positive)

    return [chart(f.norms, "Gradient norm"), chart(f.losses, "Loss")]


def _directions(f: Figures) -> list[Chart | None]:
    if len(f.tasks) < 2:
        return []
    return [
        _matrix(f, f.cosine, "Mean cosine"),
        _conflicts(f),
        _matrix(f, f.affinity, "First-order affinity"),
        _dendrogram(f),
    ]


def _matrix(f: Figures, values: Array, title: str) -> Chart:
    off_diagonal = np.where(np.eye(len(f.tasks), dtype=bool), np.nan, values)  # there it is one
    made = heat_chart(off_diagonal.tolist(), f.tasks, f.tasks, title, title)
    # one stands for as much as the task's own, so larger figures have no stronger color
    made.figure["data"][0] |= {"zmin": -1.0, "zmax": 1.0}
    return made


def _conflicts(f: Figures) -> Chart:
    """Shares of steps, as red as conflicts are."""
    made = _matrix(f, -f.conflict_share, "Steps in conflict")
    made.figure["data"][0] |= {
        "text": [["" if math.isnan(v) else f"{v:.0%}" for v in row] for row in f.conflict_share],
        "texttemplate": "%{text}" if f.conflict_share.size <= 150 else "",
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "showscale": False,
    }
    return made


def _dendrogram(f: Figures) -> Chart | None:
    """The tree of the tasks by agreement."""
    from scipy.cluster.hierarchy import dendrogram

    links = tree(f.affinity)
    if links is None:
        return None
    placed = dendrogram(links, no_plot=True, labels=list(f.tasks))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            # the tree is in distances, one minus the agreement, which is what people read
            "x": [1 - height for height in heights],
            "y": list(across),
            "hovertemplate": "agreement %{x:+.2f}<extra></extra>",
        }
        for across, heights in zip(placed["icoord"], placed["dcoord"], strict=True)
    ]
    leaves = placed["ivl"]
    lowest = min(1 - float(links[:, 2].max()), 0.0)
    layout = {
        "xaxis": {"title": {"text": "agreement"}, "range": [1.02, lowest - 0.05]},
        "yaxis": {
            "tickvals": [5 + 10 * number for number in range(len(leaves))],
            "ticktext": [shorten(name) for name in leaves],
            "range": [10 * len(leaves), 0],
        },
        "shapes": [
            {"type": "line", "x0": GROUP_COSINE, "x1": GROUP_COSINE, "yref": "paper", "y0": 0, "y1": 1}
        ],
        "height": 120 + _ROW * len(leaves),
        "hovermode": "closest",
    }
    groups = "; ".join(", ".join(f.tasks[k] for k in group) for group in f.groups)
    return Chart("Groups by agreement", {"data": data, "layout": layout}, f"Groups: {groups}.")


def _number(value: float, form: str = "{:.3g}") -> Cell:
    return Cell(form.format(value) if math.isfinite(value) else "-", _known(value))


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _sentence(text: str, capital: bool = True) -> str:
    return (text[:1].upper() if capital else text[:1]) + text[1:] + "."


def _plain(text: str) -> str:
    return text.replace("`", "")
