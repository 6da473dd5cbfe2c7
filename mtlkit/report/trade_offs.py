"""Trade-offs between tasks: ranks, the front of weighted sums, and hypervolumes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mtlkit.report.charts import (
    Chart,
    Line,
    Point,
    Row,
    line_chart,
    metric_bounds,
    plain,
    point_chart,
    row_chart,
    scatter,
)
from mtlkit.report.fronts import hypervolume, pareto_front
from mtlkit.report.metric_table import task_gains
from mtlkit.report.page import Block, Cell, Charts, Head, Listing, Note, Section
from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.significance import LEVEL, rank_methods
from mtlkit.report.statistics import Floats

_MOST_PAIRED = 3


def mean_metrics(comparison: Comparison, labels: list[str]) -> Floats:
    """Return main metrics (labels, tasks), averaged over seeds; NaN if a seed has none.

    A method that fails on a hard seed must not look good by the mean of the others.
    """
    return _means(
        comparison,
        labels,
        lambda run: {task.name: run.metric(task.name, task.main_metric) for task in comparison.tasks},
    )


def mean_gains(comparison: Comparison, labels: list[str]) -> Floats:
    """Return improvements over single-task networks in percent (labels, tasks), averaged over seeds."""
    return _means(comparison, labels, lambda run: task_gains(comparison, run))


def _means(comparison: Comparison, labels: list[str], read: Callable[[Run], dict[str, float]]) -> Floats:
    table = np.full((len(labels), len(comparison.tasks)), math.nan)
    for row, label in zip(table, labels, strict=True):
        found = [read(run) for run in comparison.of(label) if run.status == "done"]
        if len(found) == len(comparison.seeds):
            row[:] = [sum(each[task.name] for each in found) / len(found) for task in comparison.tasks]
    table[~np.isfinite(table)] = math.nan
    return table


def _signs(comparison: Comparison) -> Floats:
    """Return 1 for tasks whose main metric is better if higher, else -1."""
    return np.array([1.0 if task.higher_is_better else -1.0 for task in comparison.tasks])


def _incomplete(comparison: Comparison, what: str) -> str:
    """Name the methods without a finite result on every seed; empty if there are none."""
    table = mean_metrics(comparison, comparison.labels)
    names = [n for n, row in zip(comparison.labels, table, strict=True) if np.isnan(row).any()]
    return (
        f" Left out {what}, without a finite result on every seed: {', '.join(names)}." if names else ""
    )


def front_section(comparison: Comparison) -> Section:
    """Show the front of weighted sums, if there is one."""
    drawn = comparison.front_labels
    if not drawn or len(comparison.tasks) < 2:
        return Section("front", "", [])
    kept = pareto_front(mean_metrics(comparison, drawn) * _signs(comparison))
    many = len(comparison.tasks) > _MOST_PAIRED
    blocks: list[Block] = [
        Note(
            f"Gray: the plain sum with {len(drawn)} random loss weights, averaged over seeds. This is "
            "what a search over weights alone reaches; a method is worth its cost if it is better. "
            f"{kept.sum()} of them are on the Pareto front over all tasks"
            f"{'; the others are dotted' if many else ''}.{_incomplete(comparison, 'here')}"
        )
    ]
    pairs = [] if many else itertools.combinations(comparison.tasks, 2)
    charts = [_parallel(comparison, kept)] if many else [_pair(comparison, *pair) for pair in pairs]
    blocks.append(Charts(charts))
    return Section("front", "Front of weighted sums", [*blocks, *_volumes(comparison)])


def _pair(comparison: Comparison, first: TaskRecord, second: TaskRecord) -> Chart | None:
    columns = [comparison.tasks.index(first), comparison.tasks.index(second)]
    drawn, labels = comparison.front_labels, comparison.labels
    behind = mean_metrics(comparison, drawn)[:, columns]
    methods = mean_metrics(comparison, labels)[:, columns]
    best = behind[pareto_front(behind * _signs(comparison)[columns])]
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


def _parallel(comparison: Comparison, kept: NDArray[np.bool_]) -> Chart | None:
    """Draw a line per method over the tasks: gains over single-task networks, or the reference.

    Weightings that are not on the front (``kept``) are dotted.
    """
    drawn, labels = comparison.front_labels, comparison.labels
    base = comparison.baseline if comparison.baseline in labels else comparison.reference
    if base is None or base not in labels:
        return None
    if base == comparison.baseline:
        behind, methods = mean_gains(comparison, drawn), mean_gains(comparison, labels)
    else:
        zero = mean_metrics(comparison, [base])
        size = np.where(zero == 0, np.nan, np.abs(zero))  # a gain over zero is undefined
        behind, methods = (
            100 * _signs(comparison) * (mean_metrics(comparison, part) - zero) / size
            for part in (drawn, labels)
        )
    places = np.arange(float(len(comparison.tasks)))
    lines = [Line(index, label, places, methods[index]) for index, label in enumerate(labels)]
    chart = line_chart(lines, "Gain by task", "", f"gain over {base}, %")
    if chart is None:
        return None
    gray = [
        scatter(None, label, places, row, mode="lines", hoverinfo="skip",
                line={"width": 1, "dash": "solid" if on_front else "dot"})
        for label, row, on_front in zip(drawn, behind, kept, strict=True)
    ]  # fmt: skip
    for trace in chart.figure["data"]:
        trace["mode"] = "lines+markers"
    layout = {
        **chart.figure["layout"],
        "hovermode": "closest",
        "height": 380,
        "xaxis": {"tickvals": places, "ticktext": [plain(task.name) for task in comparison.tasks]},
    }
    figure = {"data": gray + chart.figure["data"], "layout": layout}
    return Chart(chart.title, figure, chart.description, wide=True)


def _volumes(comparison: Comparison) -> list[Block]:
    """Return the hypervolumes of each method and of the front, relative to single-task networks."""
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
        volume = math.nan if np.isnan(row).any() else hypervolume([row], zero)
        rows.append([Cell(label, series, series=series), *_volume(volume, tasks)])
    heads = [Head("method", "low"), Head("hypervolume"), Head("equal gain, %")]
    return [
        Listing(heads, rows, name="volumes", sortable=len(rows) > 2),
        Note(
            "Hypervolume of the relative improvements over single-task networks; 0 unless all tasks "
            "improve. Equal gain: the improvement of every task that gives the same volume."
        ),
    ]


def _volume(value: float, tasks: int) -> list[Cell]:
    if math.isnan(value):
        return [Cell("–"), Cell("–")]
    gain = 100 * value ** (1 / tasks)
    return [Cell(f"{value:.3g}", value), Cell(f"{gain:.2f}", gain)]


def rank_section(comparison: Comparison) -> Section:
    """Draw the mean ranks of all methods, including single-task networks."""
    labels, seeds, tasks = comparison.labels, comparison.seeds, comparison.tasks
    if len(labels) < 3 or len(tasks) < 2:
        return Section("ranks", "", [])
    gains = np.full((len(labels), len(seeds), len(tasks)), np.nan)  # higher is better
    for place, label in enumerate(labels):
        for run in comparison.of(label):
            if run.status == "done":
                metrics = [run.metric(task.name, task.main_metric) for task in tasks]
                gains[place, seeds.index(run.seed)] = _signs(comparison) * metrics
    ranking = rank_methods(labels, gains)
    if len(ranking.labels) < 3:
        return Section("ranks", "", [])
    found = "differ" if ranking.p_value < LEVEL else "cannot be distinguished"
    note = Note(
        f"Mean rank over {len(tasks)} tasks and {len(seeds)} seeds, 1 is best. The ranks "
        f"{found} (p = {ranking.p_value:.2g}, permutation of methods within seeds). Methods left of the "
        f"dashed line cannot be distinguished from the best.{_incomplete(comparison, 'of the ranking')}"
    )
    rows = [
        Row(labels.index(label), label, rank)
        for label, rank in zip(ranking.labels, ranking.ranks, strict=True)
    ]
    limit = min(ranking.ranks[0] + ranking.critical, len(rows) + 0.4)
    bounds = (0.5, len(rows) + 0.5)
    chart = row_chart(rows, "Mean rank", "mean rank, 1 is best", marker=limit, bounds=bounds)
    return Section("ranks", "Ranks over tasks", [note, Charts([chart])])
