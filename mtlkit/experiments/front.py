"""The Pareto front of one network with preferences, evaluated at many of them."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlkit.config.files import write_text
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import MtlkitError, SpecError, UsageError, unknown_name
from mtlkit.report.charts import Chart, Point, metric_bounds, point_chart
from mtlkit.report.fronts import hypervolume, pareto_front
from mtlkit.report.page import Cell, Charts, Head, Listing, Note, Section, render_page
from mtlkit.report.statistics import Floats
from mtlkit.tasks import Task
from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import build_trainer, load_data

Split = Literal["test", "val"]
_MOST_PAIRED = 4


@dataclass(frozen=True)
class PreferenceFront:
    """Metrics of one network at many preferences.

    Attributes:
        tasks: the tasks.
        split: what the metrics were measured on: ``test`` or ``val``.
        preferences: (N, K), each of sum one.
        metrics: all metrics by task, at each preference.
        reference: main metric of each task that the hypervolume is relative to.

    >>> from mtlkit import Task
    >>> both = (Task.regression("a"), Task.regression("b"))
    >>> metrics = [{"a": {"mse": x}, "b": {"mse": y}} for x, y in ((1, 3), (2, 2), (3, 1), (3, 3))]
    >>> main = [task.main_metric for task in both]
    >>> found = PreferenceFront(both, "test", np.eye(4)[:, :2], metrics, np.array([4.0, 4.0]))
    >>> main, found.on_front.tolist(), found.hypervolume
    (['mse', 'mse'], [True, True, True, False], 6.0)
    """

    tasks: tuple[Task, ...]
    split: Split
    preferences: Floats
    metrics: Sequence[Mapping[str, Mapping[str, float]]]
    reference: Floats

    @property
    def main_metrics(self) -> Floats:
        """The main metrics (N, K)."""
        return _main_metrics(self.metrics, self.tasks)

    @property
    def on_front(self) -> NDArray[np.bool_]:
        """Mask (N,) of the preferences that no other dominates in the main metrics."""
        return pareto_front(self.main_metrics * _signs(self.tasks))

    @property
    def hypervolume(self) -> float:
        """The volume between the front and the reference, in the units of the main metrics."""
        signs = _signs(self.tasks)
        return hypervolume(self.main_metrics * signs, self.reference * signs)

    def to_csv(self) -> str:
        """Return a row per preference: the preference, whether it is on the front, all metrics."""
        import pandas

        rows = [
            {
                **{f"preference/{t.name}": p for t, p in zip(self.tasks, preference, strict=True)},
                "on_front": bool(on_front),
                **{f"{task}/{name}": v for task, row in found.items() for name, v in row.items()},
            }
            for preference, on_front, found in zip(
                self.preferences.tolist(), self.on_front, self.metrics, strict=True
            )
        ]
        text: str = pandas.DataFrame(rows).to_csv(index=False)
        return text

    def to_html(self, title: str) -> str:
        """Return a page with the front as charts and as a table."""
        labels = [describe_preference(self.tasks, row) for row in self.preferences]
        pairs = itertools.combinations(range(min(len(self.tasks), _MOST_PAIRED)), 2)
        charts = Charts([self._chart(labels, *pair) for pair in pairs])
        heads: list[Head | str] = [Head("preference", "low"), "on the front"]
        heads += [
            Head(f"{task.name} {task.main_metric}", "high" if sign > 0 else "low")
            for task, sign in zip(self.tasks, _signs(self.tasks), strict=True)
        ]
        rows: list[list[Cell | str]] = [
            [label, "yes" if on_front else "", *(Cell(f"{value:.4g}", value) for value in row)]
            for label, on_front, row in zip(
                labels, self.on_front, self.main_metrics.tolist(), strict=True
            )
        ]
        return render_page(
            title,
            [
                Section("front", "Front", [charts, Note(self.describe_volume())]),
                Section(
                    "table", "Preferences", [Listing(heads, rows, name="preferences", sortable=True)]
                ),
            ],
            lead=[f"One network, {len(rows)} preferences: {self.on_front.sum()} on the front."],
            facts=["test set" if self.split == "test" else "validation set"],
        )

    def describe_volume(self) -> str:
        """Return a sentence with the hypervolume and its reference."""
        corner = ", ".join(
            f"{task.name} {task.main_metric} {value:.4g}"
            for task, value in zip(self.tasks, self.reference, strict=True)
        )
        return f"Hypervolume {self.hypervolume:.4g}, above the reference {corner}."

    def _chart(self, labels: Sequence[str], first: int, second: int) -> Chart | None:
        columns = self.main_metrics[:, [first, second]]
        tasks = [self.tasks[first], self.tasks[second]]
        kept = columns[pareto_front(columns * _signs(tasks))]
        points = [Point(0, label, *row) for label, row in zip(labels, columns.tolist(), strict=True)]
        return point_chart(
            points,
            f"{tasks[0].name} and {tasks[1].name}",
            *(f"{task.name} {task.main_metric} ({_better(task)} is better)" for task in tasks),
            front=[Point(None, "front", *row) for row in kept[np.argsort(kept[:, 0])].tolist()],
            x_bounds=metric_bounds(tasks[0].main_metric),
            y_bounds=metric_bounds(tasks[1].main_metric),
        )


def front(
    run: str | os.PathLike[str],
    *,
    points: int | ArrayLike | None = None,
    split: Split | None = None,
    reference: Mapping[str, float] | None = None,
    device: str = "auto",
    report: Callable[[int, int], None] | None = None,
) -> PreferenceFront:
    """Evaluate the network of a run, trained with ``preference``, at many preferences.

    Args:
        run: output folder of ``mtlkit train --preference ...``; its data must be available.
        points: number of preferences, or the preferences (N, K) in task order, divided by their sums;
            by default, 11 for two tasks and 10 per task for more.
        split: ``test`` or ``val``; None for the test set, if there is one.
        reference: value of each task's main metric that the hypervolume is relative to, by default the
            worst value found. Hypervolumes are only comparable with the same reference.
        device: ``auto``, ``cpu`` or ``cuda``.
        report: called with the number of finished preferences and the total.

    Raises:
        MtlkitError: for a folder without a network that was trained with preferences.

    >>> from mtlkit.experiments.front import front
    >>> front("runs/digits", points=5).hypervolume  # doctest: +SKIP
    0.61
    """
    folder = Path(run)
    if not (folder / "config.yaml").is_file():
        raise MtlkitError(f"{folder} contains no run; give the output folder of `mtlkit train`")
    settings = {**read_yaml(folder / "config.yaml"), "output": str(folder), "device": device}
    config = TrainConfig.make({**settings, "log_with": [], "test": True}, str(folder))
    dataset = load_data(config)
    trainer, loaders = build_trainer(config, dataset=dataset, progress=False)
    network: Any = trainer.model
    if network.preferences is None:
        raise UsageError(
            f"the network in {folder} was trained without preferences; train one with "
            "`mtlkit train --preference 'lora(rank=4)'`"
        )
    if not trainer.load_best():
        raise MtlkitError(f"the run in {folder} has no weights yet: there is no checkpoints/best.pt")
    chosen: Split = split or ("val" if loaders["test"] is None else "test")
    if loaders[chosen] is None:
        raise UsageError(f"the data set of the run in {folder} has no {chosen} samples")
    preferences = _preferences(network.tasks, points)
    found = []
    for number, preference in enumerate(preferences.tolist()):
        network.set_preference(dict(zip(network.tasks, preference, strict=True)))
        found.append(trainer.evaluate(loaders[chosen]))
        if report is not None:
            report(number + 1, len(preferences))
    return PreferenceFront(
        trainer.tasks, chosen, preferences, found, _corner(found, trainer.tasks, reference or {})
    )


def spread_preferences(tasks: int, points: int | None = None) -> Floats:
    """Return preferences (N, K) that cover all trade-offs: the corners, the middle, and points between.

    For two tasks they are equally spaced; for more, the others are drawn from a fixed seed.

    >>> spread_preferences(2, 3).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    >>> spread_preferences(3).shape
    (30, 3)
    """
    count = points if points is not None else 11 if tasks == 2 else 10 * tasks
    least = 2 if tasks == 2 else tasks + 1
    if count < least:
        raise SpecError(f"a front of {tasks} tasks needs at least {least} points, not {count}")
    if tasks == 2:
        first = np.linspace(0.0, 1.0, count)
        return np.stack([first, 1 - first], axis=1)
    drawn = np.random.default_rng(0).dirichlet(np.ones(tasks), count - least)
    return np.concatenate([np.eye(tasks), np.full((1, tasks), 1 / tasks), drawn])


def _preferences(tasks: Sequence[str], points: int | ArrayLike | None) -> Floats:
    if points is None or isinstance(points, int):
        return spread_preferences(len(tasks), points)
    given: Floats = np.asarray(points, dtype=float)
    if given.ndim != 2 or given.shape[1] != len(tasks) or not len(given):
        raise SpecError(
            f"preferences must have the shape (N, {len(tasks)}), with a column per task "
            f"({', '.join(tasks)}), not {given.shape}"
        )
    found: Floats = given / given.sum(axis=1, keepdims=True)
    return found


def describe_preference(tasks: Sequence[Task], preference: Sequence[float] | Floats) -> str:
    """Return a preference in words: ``seg 0.75, depth 0.25``."""
    pairs = zip(tasks, preference, strict=True)
    return ", ".join(f"{task.name} {float(value):.2f}" for task, value in pairs)


def _better(task: Task) -> str:
    return "higher" if task.higher_is_better.get(task.main_metric, False) else "lower"


def _signs(tasks: Sequence[Task]) -> Floats:
    return np.array([1.0 if _better(task) == "higher" else -1.0 for task in tasks])


def _main_metrics(found: Sequence[Mapping[str, Mapping[str, float]]], tasks: Sequence[Task]) -> Floats:
    return np.array([[row[task.name][task.main_metric] for task in tasks] for row in found], dtype=float)


def _corner(found: Sequence[Any], tasks: Sequence[Task], given: Mapping[str, float]) -> Floats:
    """Return the reference of the hypervolume: what was given, else the worst value."""
    names = [task.name for task in tasks]
    for name in given:
        if name not in names:
            raise unknown_name("task in the reference", name, names)
    signs = _signs(tasks)
    worst = np.nanmin(_main_metrics(found, tasks) * signs, axis=0) * signs
    corner = [float(given.get(name, value)) for name, value in zip(names, worst, strict=True)]
    if not all(map(math.isfinite, corner)):
        raise SpecError(
            f"the reference of the front is not finite: {dict(zip(names, corner, strict=True))}"
        )
    return np.array(corner)


def write_front(found: PreferenceFront, folder: Path) -> tuple[Path, Path]:
    """Write ``front.csv`` and ``front.html``, and return their paths."""
    table, page = folder / "front.csv", folder / "front.html"
    write_text(table, found.to_csv())
    write_text(page, found.to_html(f"Front of {folder.resolve().name}"))
    return table, page
