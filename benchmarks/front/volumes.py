"""Hypervolumes of the runs, their table and figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mtlkit.config.files import write_text
from mtlkit.report.fronts import hypervolume

METRICS = {
    "left": "accuracy",
    "right": "accuracy",
    "parity": "f1",
    "digit_sum": "mse",
    "pixels": "mse",
}
REFERENCE = np.array([0.1, 0.1, 0.0, 16.5, 1.0])
"""Main metrics of a constant prediction."""
IDEAL = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
TWENTY = "twenty trainings"
_SUMS = "front "

Rows = dict[str, NDArray[np.float64]]


def volume(points: ArrayLike) -> float:
    """Return the hypervolume of main metrics (N, 5), as a fraction of the box up to perfect metrics."""
    gains = (np.asarray(points) - REFERENCE) / (IDEAL - REFERENCE)
    return hypervolume(gains, np.zeros(len(IDEAL)))


def read_runs(folder: Path) -> tuple[Rows, Rows, Rows]:
    """Return hypervolumes (seeds,), CPU minutes (seeds,) and mean best metrics (5,) by network.

    A seed counts when all its runs are stored.
    """
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    labels = list(dict.fromkeys(run["label"] for run in runs))
    by_seed: dict[int, dict[str, Any]] = {}
    for run in runs:
        by_seed.setdefault(run["seed"], {})[run["label"]] = run
    whole = [found for _, found in sorted(by_seed.items()) if len(found) == len(labels)]
    sums = [label for label in labels if label.startswith(_SUMS)]
    groups = {TWENTY: sums, **{label: [label] for label in labels if label not in sums}}
    volumes: Rows = {}
    minutes: Rows = {}
    best: Rows = {}
    for name, members in groups.items():
        points = [[row for label in members for row in seed[label]["points"]] for seed in whole]
        seconds = [sum(seed[label]["cpu_seconds"] for label in members) for seed in whole]
        volumes[name] = np.array([volume(seed) for seed in points])
        minutes[name] = np.array(seconds) / 60
        values = np.array(points)
        top = np.where(IDEAL > REFERENCE, values.max(axis=1), values.min(axis=1))
        best[name] = top.mean(axis=0)
    return volumes, minutes, best


def interval(differences: NDArray[np.float64], comparisons: int) -> tuple[float, float, float]:
    """Return the mean with its 95% t-interval, by Bonferroni's correction for all comparisons."""
    count = len(differences)
    half = stats.t.ppf(1 - 0.025 / comparisons, count - 1) * differences.std(ddof=1) / count**0.5
    mean = float(differences.mean())
    return mean, mean - float(half), mean + float(half)


def to_table(folder: Path) -> str:
    """Return the Markdown table of all networks."""
    volumes, minutes, best = read_runs(folder)
    names = [f"{task} {metric}" for task, metric in METRICS.items()]
    lines = [
        "| | hypervolume | against twenty trainings | CPU minutes | " + " | ".join(names) + " |",
        "|---|--:|--:|--:" + "|--:" * len(names) + "|",
    ]
    for name, found in volumes.items():
        against = "–"
        if name != TWENTY:
            mean, low, high = interval(found - volumes[TWENTY], len(volumes) - 1)
            against = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
        metrics = " | ".join(f"{value:.3f}" for value in best[name])
        row = f"{found.mean():.3f} ± {found.std(ddof=1):.3f} | {against} | {minutes[name].mean():.2f}"
        lines.append(f"| {name} | {row} | {metrics} |")
    count = len(volumes[TWENTY])
    return (
        "\n".join(lines)
        + f"\n\nMeans over {count} seeds, ± standard deviation; differences paired by seed, with 95% "
        f"intervals corrected for {len(volumes) - 1} comparisons. The last columns: the best value of "
        "each metric over the twenty points.\n"
    )


def draw(folder: Path) -> Any:
    """Draw hypervolume against CPU minutes, a dot per seed, and the differences with their intervals."""
    from matplotlib.figure import Figure

    volumes, minutes, _ = read_runs(folder)
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (name, found) in enumerate(volumes.items()):
        color = f"C{number}"
        left.plot(minutes[name], found, "o", color=color, markersize=5, label=name)
        if name != TWENTY:
            mean, low, high = interval(found - volumes[TWENTY], len(volumes) - 1)
            right.plot([low, high], [number, number], color=color, linewidth=2)
            right.plot(mean, number, "o", color=color, markersize=5)
    left.set_xscale("log")
    left.set_xlabel("CPU minutes (log scale)", fontsize=9)
    left.set_ylabel("hypervolume", fontsize=9)
    left.legend(fontsize=7)
    right.axvline(0, color="#808890", linewidth=1)
    right.set_yticks(range(1, len(volumes)), list(volumes)[1:], fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("larger hypervolume than twenty trainings →", fontsize=9)
    return figure


def redraw(folder: Path) -> None:
    """Write the table and the figure."""
    write_text(folder / "table.md", to_table(folder))
    draw(folder).savefig(folder / "volumes.png", dpi=110)
