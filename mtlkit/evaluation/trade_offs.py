"""Fronts of weighted sums with the methods on them, and what these dominate."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mtlkit.evaluation.charts import Chart, Point, line_chart, metric_bounds, plain, point_chart
from mtlkit.evaluation.charts import Line as ChartLine
from mtlkit.evaluation.figures import task_gains
from mtlkit.evaluation.fronts import hypervolume, pareto_front
from mtlkit.evaluation.page import Block, Cell, Charts, Head, Listing, Note, Section
from mtlkit.evaluation.results import Comparison, TaskRecord
from mtlkit.evaluation.statistics import Floats

__all__ = ["front_section", "mean_gains", "mean_metrics"]

_MOST_PAIRED = 3


def mean_metrics(comparison: Comparison, labels: list[str]) -> Floats:
    """Main metrics (labels, tasks), means over seeds; NaN where a run has none."""
    rows = []
    for label in labels:
        runs = comparison.of(label)
        rows.append(
            [
                _mean([run.metric(task.name, task.main_metric) for run in runs])
                for task in comparison.tasks
            ]
        )
    return np.array(rows).reshape(len(labels), len(comparison.tasks))


def mean_gains(comparison: Comparison, labels: list[str]) -> Floats:
    """Improvements over the single-task networks in percent (labels, tasks), means over seeds."""
    rows = []
    for label in labels:
        gains = [task_gains(comparison, run) for run in comparison.of(label) if run.status == "done"]
        rows.append([_mean([gain[task.name] for gain in gains]) for task in comparison.tasks])
    return np.array(rows).reshape(len(labels), len(comparison.tasks))


def front_section(comparison: Comparison) -> Section:
    """The front, where weightings were drawn for it."""
    drawn = comparison.front_labels
    if not drawn or len(comparison.tasks) < 2:
        return Section("front", "", [])
    blocks: list[Block] = [
        Note(
            f"Grey: the plain sum with {len(drawn)} drawn weightings of the losses, means over seeds: "
            "what a search over weights alone reaches. A method is worth its effort if it lies beyond."
        )
    ]
    if len(comparison.tasks) <= _MOST_PAIRED:
        blocks.append(
            Charts([_pair(comparison, *p) for p in itertools.combinations(comparison.tasks, 2)])
        )
    else:
        blocks.append(Charts([_parallel(comparison)]))
    volumes = _volumes(comparison)
    return Section("front", "Front of weighted sums", [*blocks, *volumes])


def _pair(comparison: Comparison, first: TaskRecord, second: TaskRecord) -> Chart | None:
    columns = [comparison.tasks.index(first), comparison.tasks.index(second)]
    drawn, labels = comparison.front_labels, comparison.labels
    behind = mean_metrics(comparison, drawn)[:, columns]
    methods = mean_metrics(comparison, labels)[:, columns]
    signs = np.array([1.0 if task.higher_is_better else -1.0 for task in (first, second)])
    best = behind[pareto_front(behind * signs)]
    best = best[np.argsort(best[:, 0])]
    points = [Point(None, label, *row) for label, row in zip(drawn, behind.tolist(), strict=True)]
    points += [
        Point(index, label, *row)
        for index, (label, row) in enumerate(zip(labels, methods.tolist(), strict=True))
    ]
    titles = [
        f"{task.name} {task.main_metric} ({'higher' if task.higher_is_better else 'lower'} is better)"
        for task in (first, second)
    ]
    return point_chart(
        points,
        f"{first.name} and {second.name}",
        *titles,
        front=[Point(None, "front", *row) for row in best.tolist()],
        x_bounds=metric_bounds(first.main_metric),
        y_bounds=metric_bounds(second.main_metric),
    )


def _parallel(comparison: Comparison) -> Chart | None:
    """A line per method over the tasks; gains over single-task networks, or over the reference."""
    drawn, labels = comparison.front_labels, comparison.labels
    base = comparison.baseline if comparison.baseline in labels else comparison.reference
    if base is None or base not in labels:
        return None
    if base == comparison.baseline:
        behind, methods = mean_gains(comparison, drawn), mean_gains(comparison, labels)
    else:
        signs = np.array([1.0 if task.higher_is_better else -1.0 for task in comparison.tasks])
        zero = mean_metrics(comparison, [base])
        size = np.where(zero == 0, np.nan, np.abs(zero))  # a gain over nothing is no number
        behind, methods = (
            100 * signs * (mean_metrics(comparison, part) - zero) / size for part in (drawn, labels)
        )
    places = np.arange(float(len(comparison.tasks)))
    lines = [ChartLine(index, label, places, methods[index]) for index, label in enumerate(labels)]
    chart = line_chart(lines, "Gain by task", "", f"gain over {base}, %")
    if chart is None:
        return None
    grey = [
        {"type": "scatter", "mode": "lines", "name": plain(label), "x": places, "y": row, "opacity": 0.5,
         "line": {"width": 1}, "hoverinfo": "skip"}
        for label, row in zip(drawn, behind, strict=True)
    ]  # fmt: skip
    for trace in chart.figure["data"]:
        trace["mode"] = "lines+markers"
    layout = {
        **chart.figure["layout"],
        "hovermode": "closest",
        "height": 380,
        "xaxis": {"tickvals": places, "ticktext": [plain(task.name) for task in comparison.tasks]},
    }
    figure = {"data": grey + chart.figure["data"], "layout": layout}
    return Chart(chart.title, figure, chart.description, wide=True)


def _volumes(comparison: Comparison) -> list[Block]:
    """Hypervolumes of each method and of the whole front, in shares of the single-task metrics."""
    if comparison.baseline not in comparison.labels:
        return []
    labels = [label for label in comparison.labels if label != comparison.baseline]
    zero = np.zeros(len(comparison.tasks))
    whole = hypervolume(mean_gains(comparison, comparison.front_labels) / 100, zero)
    tasks = len(comparison.tasks)
    rows: list[list[Cell | str]] = [["all weightings", *_volume(whole, tasks)]]
    gains = mean_gains(comparison, labels) / 100
    for label, row in zip(labels, gains, strict=True):
        series = comparison.labels.index(label)
        rows.append([Cell(label, series, series=series), *_volume(hypervolume([row], zero), tasks)])
    return [
        Listing(
            [Head("method", "low"), Head("hypervolume"), Head("equal gain, %")], rows, name="volumes"
        ),
        Note(
            "Hypervolume above the single-task networks, in relative improvements; 0 for what is not "
            "better on every task. Equal gain: the improvement on every task that has the same volume."
        ),
    ]


def _volume(value: float, tasks: int) -> list[Cell]:
    gain = 100 * value ** (1 / tasks)
    return [Cell(f"{value:.3g}", value), Cell(f"{gain:.2f}", gain)]


def _mean(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
