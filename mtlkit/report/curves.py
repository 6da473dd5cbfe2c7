"""Learning curves and gradients of a comparison: means over seeds with their confidence bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mtlkit.report.charts import NO_BOUNDS, Bounds, Chart, Line, layer_chart, line_chart, metric_bounds
from mtlkit.report.histories import HistoryRow, MonitorRow
from mtlkit.report.page import Charts, Note, Section
from mtlkit.report.results import Comparison, Run
from mtlkit.report.statistics import confidence_band

_BYTES = 2_200_000  # of all curves of a page
_POINT = 40
_NOTE = Note("Mean over seeds; shaded: 90% confidence interval of the mean.")

Points = Callable[[Run], list[tuple[float, float]]]


def learning_section(comparison: Comparison) -> Section:
    """Draw metrics and losses over time."""
    blocks = [
        Charts(
            [
                _history_chart(comparison, "val", task.name, _metric(task.name, task.main_metric),
                               f"validation {task.main_metric}", metric_bounds(task.main_metric))
                for task in comparison.tasks
            ],
            "Validation",
        )
    ]  # fmt: skip
    for split, title in (("train", "Training loss"), ("val", "Validation loss")):
        charts = [
            _history_chart(comparison, split, task.name, _of_task("losses", task.name), "loss")
            for task in comparison.tasks
        ]
        blocks.append(Charts(charts, title, closed=split == "val"))
    shown = any(block.kept for block in blocks)
    return Section("learning", "Learning curves", [_note(comparison), *blocks] if shown else [])


def gradient_section(comparison: Comparison) -> Section:
    """Draw statistics of the task gradients."""

    def chart(
        title: str, read: Callable[[MonitorRow], float], label: str, bounds: Bounds, log: bool = False
    ) -> Chart | None:
        lines = _mean_lines(
            comparison, lambda run: [(float(row.step), read(row)) for row in run.monitor]
        )
        points = _points(comparison)
        return line_chart(lines, title, "step", label, bounds=bounds, log_y=log, points=points)

    def by_task(attribute: str, label: str, bounds: Bounds, log: bool = False) -> list[Chart | None]:
        return [
            chart(task.name, _of_task(attribute, task.name), label, bounds, log)
            for task in comparison.tasks
        ]

    cosine, share, degrees = (-1.0, 1.0), (0.0, 1.0), (0.0, 180.0)
    title = "Cosine of task gradients with the update, mean over tasks"
    overview = [
        chart(title, lambda row: row.mean_cosine, "cosine", cosine),
        chart("Pairs of tasks in conflict", lambda row: row.conflict, "fraction", share),
        chart(
            "Angle of the rotations, mean over tasks",
            lambda row: _mean(row.rotation_angles.values()),
            "degrees",
            degrees,
        ),
    ]
    blocks = [
        Charts(overview),
        Charts(by_task("update_cosines", "cosine", cosine), "Cosine with the update, by task"),
        Charts(by_task("norms", "norm", (0.0, None), log=True), "Gradient norms, by task"),
        Charts(by_task("weights", "weight", NO_BOUNDS), "Weights, by task", closed=True),
        Charts(by_task("rotation_angles", "degrees", degrees), "Angles, by task", closed=True),
        Charts([_layers(comparison, label) for label in comparison.labels], "Conflicts by layer",
               "Mean cosine of two tasks' gradients over all seeds and steps; red is conflict."),
    ]  # fmt: skip
    shown = any(block.kept for block in blocks)
    return Section("gradients", "Gradients", [_note(comparison), *blocks] if shown else [])


def _layers(comparison: Comparison, label: str) -> Chart | None:
    """Draw the mean cosine of each pair of tasks in each group of parameters."""
    rows = [row.groups for run in comparison.of(label) for row in run.monitor if row.groups]
    pairs = list(dict.fromkeys(pair for row in rows for group in row.values() for pair in group))
    names = dict.fromkeys(name for row in rows for name in row)
    layers = {
        name: np.array([_mean(row.get(name, {}).get(pair, math.nan) for row in rows) for pair in pairs])
        for name in names
    }
    return layer_chart(layers, pairs, label)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _note(comparison: Comparison) -> Note | None:
    return _NOTE if len(comparison.runs) > 1 else None


def _points(comparison: Comparison) -> int:
    """Return the number of points per curve that keeps the page small."""
    curves = max(1, len(comparison.labels) * (3 + 7 * len(comparison.tasks)))
    return max(20, min(160, _BYTES // (_POINT * curves)))


def _metric(task: str, metric: str) -> Callable[[HistoryRow], float]:
    return lambda row: row.metrics.get(task, {}).get(metric, math.nan)


def _of_task(attribute: str, task: str) -> Callable[[Any], float]:
    return lambda row: getattr(row, attribute).get(task, math.nan)


def _history_chart(
    comparison: Comparison,
    split: str,
    title: str,
    read: Callable[[HistoryRow], float],
    label: str,
    bounds: Bounds = NO_BOUNDS,
) -> Chart | None:
    axis = _axis(comparison, split)

    def points(run: Run) -> list[tuple[float, float]]:
        rows = [row for row in run.history if row.split == split]
        return [(float(row.step) if axis == "step" else row.epoch, read(row)) for row in rows]

    lines = _mean_lines(comparison, points)
    positive = label == "loss" and all((line.y[np.isfinite(line.y)] > 0).all() for line in lines)
    return line_chart(
        lines, title, axis, label, log_y=positive, bounds=bounds, points=_points(comparison)
    )


def _axis(comparison: Comparison, split: str) -> str:
    """Return ``epoch``, or ``step`` if a run has several rows per epoch."""
    for run in comparison.runs:
        epochs = [row.epoch for row in run.history if row.split == split]
        if len(set(epochs)) < len(epochs) or any(math.isnan(epoch) for epoch in epochs):
            return "step"
    return "epoch"


def _mean_lines(comparison: Comparison, points: Points) -> list[Line]:
    """Average each method over seeds, with a band, at all points of its runs."""
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
