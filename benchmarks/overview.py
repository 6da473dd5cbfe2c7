"""Tables over all stored comparisons: gains over single-task networks, places, and fronts.

``python -m benchmarks.draw_results`` writes them to ``benchmarks/results/overview.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from mtlkit.report.endpoint import task_log_gains
from mtlkit.report.results import FRONT, Comparison, TaskRecord
from mtlkit.report.significance import LEVEL, rank_methods
from mtlkit.report.statistics import Floats

# What a practitioner would try; the same in every comparison of benchmarks/field.
METHODS = (
    "sum",
    "tuned sum",
    "scale",
    "imtl_g",
    "uw",
    "famo",
    "gradnorm",
    "cagrad",
    "nash_mtl",
    "rotograd",
)
_ALIASES = {"scale_only": "scale"}
# On some of CIFAR10's tasks single-task networks have an F1 of zero. All but its sum have R_k.
_METRICS = {"cifar10": "auc"}
_LABELS = {"cifar10": ("single-task", "sum", "imtl_g with R_k", "gradnorm with R_k", "rotograd 128")}


def common_name(label: str) -> str:
    """Return a method's name without its options: ``scale_only(burn_in=20)`` is ``scale``."""
    name = re.sub(r"\(.*\)$", "", label)
    return _ALIASES.get(name, name)


def comparable(name: str, comparison: Comparison) -> Comparison:
    """Return the comparison called ``name`` by the metric and the methods that it is comparable by."""
    metric = _METRICS.get(name)
    if metric is None:
        return comparison
    named = {label: re.sub(r" (with R_k|\d+)$", "", label) for label in _LABELS[name]}
    kept = [run for run in comparison.runs if run.label in named or run.kind == FRONT]
    runs = [replace(run, label=named.get(run.label, run.label)) for run in kept]
    tasks = [TaskRecord(task.name, {metric: task.metrics[metric]}) for task in comparison.tasks]
    return replace(comparison, tasks=tasks, runs=runs, baseline="single-task")


def log_gains(comparison: Comparison, labels: Sequence[str]) -> Floats:
    """Return log-ratios to the single-task networks (labels, tasks), in hundredths, means over seeds.

    A method without a finite value on every seed has NaN.
    """
    table = np.full((len(labels), len(comparison.tasks)), np.nan)
    for row, label in zip(table, labels, strict=True):
        runs = [run for run in comparison.of(label) if run.status == "done"]
        if len(runs) == len(comparison.seeds):
            row[:] = np.mean([[*task_log_gains(comparison, run).values()] for run in runs], axis=0)
    return table


def places(comparisons: Mapping[str, Comparison]) -> dict[str, dict[str, float]]:
    """Return the place of each method by data set and name: 0 for the first, 1 for the last.

    It is by the mean of the tasks' ranks; equal ranks share their places.
    """
    found = {}
    for name, comparison in comparisons.items():
        chosen = _chosen(comparison)
        ranking = rank_methods(list(chosen), log_gains(comparison, list(chosen.values()))[:, None])
        ranks = rankdata(np.round(ranking.ranks, 9))
        shares = (ranks - 1) / max(len(ranks) - 1, 1)
        found[name] = dict(zip(ranking.labels, map(float, shares), strict=True))
    return found


def p_value_of_places(found: Mapping[str, Mapping[str, float]], draws: int = 10_000) -> float:
    """Return the p-value of the mean places, if methods were exchangeable within each data set.

    The data sets are the blocks. Not every method was run on each: the statistic is the sum of squared
    deviations from one half, each times the number of data sets.
    """
    methods = sorted({method for places in found.values() for method in places})
    table = np.array([[row.get(method, np.nan) for method in methods] for row in found.values()])

    def statistic(values: Floats) -> Floats:
        counts = np.isfinite(values).sum(-2)
        return np.asarray((counts * (np.nanmean(values, -2) - 0.5) ** 2).sum(-1))

    random = np.random.default_rng(0)
    drawn = np.broadcast_to(table, (draws, *table.shape)).copy()
    for block, row in enumerate(table):
        known = np.isfinite(row)
        drawn[:, block, known] = random.permuted(drawn[:, block, known], axis=1)
    return float((1 + np.count_nonzero(statistic(drawn) >= statistic(table) - 1e-12)) / (1 + draws))


def overview(comparisons: Mapping[str, Comparison]) -> str:
    """Return a Markdown table: methods by data sets, the best first, and the test of their places.

    A cell is the mean log-ratio to single-task networks, over tasks and seeds, and the place. A head has
    the numbers of tasks and seeds. Comparisons that are :func:`left_out` have no column.
    """
    gone = left_out(comparisons)
    comparisons = {name: each for name, each in comparisons.items() if name not in gone}
    found = places(comparisons)
    cells: dict[str, dict[str, str]] = {}
    for name, comparison in comparisons.items():
        chosen = _chosen(comparison)
        gains = dict(zip(chosen, log_gains(comparison, list(chosen.values())).mean(1), strict=True))
        last = len(found[name]) - 1
        for method, share in found[name].items():
            cells.setdefault(method, {})[name] = f"{gains[method]:+.1f} ({1 + share * last:g})"
    means = {method: _mean_place(found, method) for method in METHODS if method in cells}
    heads = ["method", "mean place", *(_head(name, each) for name, each in comparisons.items())]
    lines = [f"| {' | '.join(heads)} |", "|:--|" + "--:|" * (len(heads) - 1)]
    for method in sorted(means, key=means.__getitem__):
        row = [method, f"{means[method]:.2f}", *(cells[method].get(name, "–") for name in comparisons)]
        lines.append(f"| {' | '.join(row)} |")
    p_value = p_value_of_places(found)
    verdict = "differ" if p_value < LEVEL else "do not differ"
    lines += ["", f"The mean places {verdict} (p = {p_value:.2g}, permutation within data sets)."]
    return "\n".join(lines) + "\n"


def _mean_place(found: Mapping[str, Mapping[str, float]], method: str) -> float:
    return float(np.mean([places[method] for places in found.values() if method in places]))


def beside_fronts(comparisons: Mapping[str, Comparison]) -> str:
    """Return a Markdown table of the methods beside drawn weightings of the sum, if there are any.

    A cell is how many weightings are at least as good on every task, and how many are nowhere better,
    by means over the seeds that the weightings were trained on. A head has the numbers of both.
    """
    comparisons = {
        name: on_seeds_of_front(each) for name, each in comparisons.items() if each.front_labels
    }
    cells: dict[str, dict[str, str]] = {}
    for name, comparison in comparisons.items():
        drawn = log_gains(comparison, comparison.front_labels)
        for method, label in _chosen(comparison).items():
            gains = log_gains(comparison, [label])
            above, below = (drawn >= gains).all(axis=1).sum(), (drawn <= gains).all(axis=1).sum()
            cells.setdefault(method, {})[name] = f"{above} / {below}"
    heads = [
        f"{name.replace('_', ' ')} ({len(each.front_labels)}, {len(each.seeds)})"
        for name, each in comparisons.items()
    ]
    lines = [f"| method | {' | '.join(heads)} |", "|:--|" + "--:|" * len(heads)]
    for method in METHODS:
        if method in cells:
            found = [cells[method].get(name, "–") for name in comparisons]
            lines.append(f"| {method} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def on_seeds_of_front(comparison: Comparison) -> Comparison:
    """Return the runs of the seeds that the drawn weightings were trained on."""
    seeds = {run.seed for run in comparison.runs if run.kind == FRONT}
    return replace(comparison, runs=[run for run in comparison.runs if run.seed in seeds])


def left_out(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return the comparisons of fewer than four of the methods, which have no column."""
    return [name for name, each in comparisons.items() if len(_chosen(each)) < 4]


def _chosen(comparison: Comparison) -> dict[str, str]:
    """Return the labels of the common methods, by their common names."""
    found = {common_name(label): label for label in reversed(comparison.labels)}
    return {method: found[method] for method in METHODS if method in found}


def _head(name: str, comparison: Comparison) -> str:
    wrapped = name.replace("_", " ")  # a long word would make its column wide
    return f"{wrapped} ({len(comparison.tasks)}, {len(comparison.seeds)})"
