"""Tables over all stored comparisons: improvements over single-task networks, ranks, and fronts.

``python -m benchmarks.draw_results`` writes them to ``benchmarks/results/overview.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from mtlkit.report.results import FRONT, Comparison, TaskRecord
from mtlkit.report.significance import rank_methods
from mtlkit.report.trade_offs import mean_gains

__all__ = ["beside_fronts", "comparable", "left_out", "on_seeds_of_front", "overview"]

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
    """A method's name, whatever its options: ``scale_only(burn_in=20)`` is ``scale``."""
    name = re.sub(r"\(.*\)$", "", label)
    return _ALIASES.get(name, name)


def comparable(name: str, comparison: Comparison) -> Comparison:
    """The comparison called ``name`` by the metric and the methods that it is comparable by."""
    metric = _METRICS.get(name)
    if metric is None:
        return comparison
    named = {label: re.sub(r" (with R_k|\d+)$", "", label) for label in _LABELS[name]}
    kept = [run for run in comparison.runs if run.label in named or run.kind == FRONT]
    runs = [replace(run, label=named.get(run.label, run.label)) for run in kept]
    tasks = [TaskRecord(task.name, {metric: task.metrics[metric]}) for task in comparison.tasks]
    return replace(comparison, tasks=tasks, runs=runs, baseline="single-task")


def overview(comparisons: Mapping[str, Comparison]) -> str:
    """A Markdown table: methods by data sets, the best on average first.

    A cell is the mean improvement over single-task networks in percent, over tasks and seeds, and the
    place by the mean of the tasks' ranks; equal ranks share their places. As not every method was run
    everywhere, the mean place is one of shares: 0 for always first, 1 for always last. A head has the
    numbers of tasks and seeds. Comparisons that are :func:`left_out` have no column.
    """
    gone = left_out(comparisons)
    comparisons = {name: each for name, each in comparisons.items() if name not in gone}
    cells: dict[str, dict[str, str]] = {}
    shares: dict[str, list[float]] = {}
    for name, comparison in comparisons.items():
        chosen = _chosen(comparison)
        gains = mean_gains(comparison, list(chosen.values()))
        ranking = rank_methods(list(chosen), gains)
        means = dict(zip(chosen, gains.mean(axis=1), strict=True))
        ranks = np.round(ranking.ranks, 9)  # sums of the same ranks in another order are equal
        firsts, lasts = (rankdata(ranks, method=which).astype(int) for which in ("min", "max"))
        for method, first, last in zip(ranking.labels, firsts, lasts, strict=True):
            place = f"{first}." if first == last else f"{first}.–{last}."
            cells.setdefault(method, {})[name] = f"{means[method]:+.1f} ({place})"
            share = ((first + last) / 2 - 1) / max(len(ranking.labels) - 1, 1)
            shares.setdefault(method, []).append(share)
    order = sorted((m for m in METHODS if m in cells), key=lambda m: float(np.mean(shares[m])))
    names = list(comparisons)
    heads = ["method", "mean place", *(_head(name, comparisons[name]) for name in names)]
    lines = [f"| {' | '.join(heads)} |", "|:--|" + "--:|" * (len(names) + 1)]
    for method in order:
        found = [cells[method].get(name, "–") for name in names]
        row = [method, f"{np.mean(shares[method]):.2f}", *found]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def beside_fronts(comparisons: Mapping[str, Comparison]) -> str:
    """A Markdown table of the methods beside drawn weightings of the sum, where there are such runs.

    A cell is how many weightings are at least as good on every task, and how many are nowhere better,
    by means over the seeds that the weightings were trained on. A head has the numbers of both.
    """
    comparisons = {
        name: on_seeds_of_front(each) for name, each in comparisons.items() if each.front_labels
    }
    cells: dict[str, dict[str, str]] = {}
    for name, comparison in comparisons.items():
        drawn = mean_gains(comparison, comparison.front_labels)
        for method, label in _chosen(comparison).items():
            gains = mean_gains(comparison, [label])
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
    """The runs of the seeds that the drawn weightings were trained on."""
    seeds = {run.seed for run in comparison.runs if run.kind == FRONT}
    return replace(comparison, runs=[run for run in comparison.runs if run.seed in seeds])


def left_out(comparisons: Mapping[str, Comparison]) -> list[str]:
    """The comparisons of fewer than four of the methods, which have no column."""
    return [name for name, each in comparisons.items() if len(_chosen(each)) < 4]


def _chosen(comparison: Comparison) -> dict[str, str]:
    """Labels of the common methods, by their common names."""
    found = {common_name(label): label for label in reversed(comparison.labels)}
    return {method: found[method] for method in METHODS if method in found}


def _head(name: str, comparison: Comparison) -> str:
    wrapped = name.replace("_", " ")  # a long word would make its column wide
    return f"{wrapped} ({len(comparison.tasks)}, {len(comparison.seeds)})"
