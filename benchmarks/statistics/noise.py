"""Simulated comparisons: runs of several methods on several tasks and seeds, where nothing differs."""

from __future__ import annotations

import numpy as np

from mtlkit.report.statistics import Floats

KINDS = (
    "normal",
    "skewed",
    "collapsing",
    "quantized",
    "correlated",
    "unequal",
    "one noisy",
)


def draw_runs(
    kind: str, comparisons: int, contestants: int, tasks: int, seeds: int, rng: np.random.Generator
) -> Floats:
    """Draw (comparisons, contestants, tasks, seeds): single-task networks, the reference, the methods.

    A fifth of the variance is the seed's, shared by all runs of a seed, and a fifth of it is shared by
    all tasks of a run, as in the stored runs (correlations of .1 to .27).

    Args:
        kind: of the noise. ``skewed``: exponential, with a long tail of bad runs. ``collapsing``: a run
            in 20 is worse by 8 deviations on all tasks. ``quantized``: rounded to one deviation.
            ``correlated``: half the variance is the seed's, .6 is shared by tasks, and neighboring
            methods share .7. ``unequal``: deviations of the contestants from 1/3 to 3. ``one noisy``:
            the last method varies five times as much as all others.
    """
    by_seed, by_task = (0.5, 0.6) if kind == "correlated" else (0.2, 0.2)

    def draw(*shape: int) -> Floats:
        return 1 - rng.exponential(size=shape) if kind == "skewed" else rng.normal(size=shape)

    def over_tasks(number: int) -> Floats:
        own, common = draw(comparisons, number, tasks, seeds), draw(comparisons, number, 1, seeds)
        return np.sqrt(1 - by_task) * own + np.sqrt(by_task) * common

    own = over_tasks(contestants)
    if kind == "correlated":
        own = np.sqrt(0.3) * own + np.sqrt(0.7) * over_tasks(contestants)[:, np.arange(contestants) // 2]
    runs = np.sqrt(1 - by_seed) * own + np.sqrt(by_seed) * over_tasks(1)
    if kind == "collapsing":
        runs -= 8.0 * (rng.random((comparisons, contestants, 1, seeds)) < 0.05)
    if kind == "quantized":
        runs = np.round(runs)
    if kind == "unequal":
        runs *= 3.0 ** rng.uniform(-1, 1, (comparisons, contestants, 1, 1))
    if kind == "one noisy":
        runs[:, -1] *= 5
    return runs
