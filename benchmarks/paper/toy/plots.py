"""Level plots: trajectories of the features over the losses, as active and passive transformations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.toy.problems import Regression, run_logistic, run_regression

BLUE, ORANGE, GREEN = "#1f77b4", "#e6850e", "#2a8f3c"


def _figure(columns: int) -> tuple[Any, Any]:
    from mtlkit.errors import MissingExtraError

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "bench", "drawing the plots") from error
    figure = Figure(figsize=(4.3 * columns, 4.4), layout="constrained")
    return figure, figure.subplots(1, columns)


def _grid(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = points.min(dim=0).values, points.max(dim=0).values
    center, half = (low + high) / 2, float((high - low).max()) * 0.5 + 0.35
    x = torch.linspace(float(center[0]) - half, float(center[0]) + half, 160)
    y = torch.linspace(float(center[1]) - half, float(center[1]) + half, 160)
    return x, y, torch.cartesian_prod(x, y).reshape(160, 160, 2).transpose(0, 1)


def _levels(axes: Any, problem: Regression, rotations: Tensor, points: Tensor) -> None:
    x, y, plane = _grid(points)
    height = sum(
        problem.loss(plane @ R.T, shift) for R, shift in zip(rotations, problem.shifts, strict=True)
    )
    assert isinstance(height, Tensor)
    axes.contourf(x, y, (height - height.min() + 0.05).log(), levels=22, cmap="Grays_r", alpha=0.55)
    axes.set_aspect("equal")


def _trail(axes: Any, points: Tensor, color: str, label: str) -> None:
    axes.plot(points[:, 0], points[:, 1], "-", color=color, linewidth=1.4, label=label)
    axes.plot(*points[0], "o", color=color, markersize=6, markerfacecolor="white")
    axes.plot(*points[-1], "o", color=color, markersize=7)


def _stars(axes: Any, optima: Tensor) -> None:
    for optimum, color in zip(optima, (BLUE, ORANGE), strict=True):
        axes.plot(
            *optimum, "*", color=color, markersize=15, markeredgecolor="black", markeredgewidth=0.7
        )


def regression_figure(problem: Regression, seed: int) -> Any:
    """Draw the sum, RotoGrad in the space of r_k (active), and RotoGrad in that of z (passive)."""
    optima = torch.tensor(problem.optima)
    vanilla, ours = (run_regression(problem, name, seed) for name in ("sum", "rotograd"))
    figure, (left, middle, right) = _figure(3)
    identity = torch.eye(2).expand(2, 2, 2)
    _panel(left, problem, identity, optima, {"z": (vanilla.features, GREEN)})
    left.set_title("without RotoGrad: z over $L_1 + L_2$")
    views = {f"$r_{k + 1}$": (ours.task_features(k), (BLUE, ORANGE)[k]) for k in (0, 1)}
    _panel(middle, problem, identity, optima, views)
    middle.set_title("RotoGrad, active: $r_k = R_k z$ over $L_1 + L_2$")
    last = ours.rotations[-1]
    seen = torch.stack([R.T @ optimum for R, optimum in zip(last, optima, strict=True)])
    _panel(right, problem, last, seen, {"z": (ours.features, GREEN)})
    right.set_title("RotoGrad, passive: z over $L_1 \\circ R_1 + L_2 \\circ R_2$")
    return figure


def _panel(axes: Any, problem: Regression, rotations: Tensor, optima: Tensor, trails: dict) -> None:
    _levels(axes, problem, rotations, torch.cat([optima, *(points for points, _ in trails.values())]))
    for label, (points, color) in trails.items():
        _trail(axes, points, color, label)
    _stars(axes, optima)
    axes.legend(loc="upper right", fontsize=9)


def logistic_figure(seed: int) -> Any:
    """Draw the probability of each task's class over the inputs, without and with RotoGrad."""
    figure, axes = _figure(4)
    for row, (spec, title) in enumerate((("sum", "without RotoGrad"), ("rotograd", "RotoGrad"))):
        fitted = run_logistic(spec, seed)
        x, y, plane = _grid(fitted.features)
        for task in (0, 1):
            panel = axes[2 * row + task]
            chance = fitted.probability(plane.reshape(-1, 2), task).reshape(160, 160)
            panel.contourf(x, y, chance, levels=torch.linspace(0, 1, 21).tolist(), cmap="RdBu_r")
            panel.plot(*fitted.features.T, ".", color="#555555", markersize=2)
            panel.set_title(f"{title}, task {task + 1}: {100 * fitted.accuracy(task):.0f} % correct")
            panel.set_aspect("equal")
    return figure


def shares_figure(shares: dict[str, dict[str, Any]]) -> Any:
    """Draw the fraction of seeds with both tasks solved, with 95% intervals; one panel per problem."""
    figure, panels = _figure(len(shares))
    for panel, (problem, rows) in zip(panels, shares.items(), strict=True):
        names = list(rows)
        values = [100 * rows[name]["share"] for name in names]
        low = [value - 100 * rows[name]["low"] for name, value in zip(names, values, strict=True)]
        high = [100 * rows[name]["high"] - value for name, value in zip(names, values, strict=True)]
        colors = [ORANGE if "rotograd" in name else BLUE for name in names]
        panel.bar(names, values, yerr=[low, high], color=colors, capsize=4)
        panel.set_ylim(0, 100)
        panel.set_ylabel("seeds with both tasks solved, %")
        panel.tick_params(axis="x", labelrotation=20)
        panel.set_title(problem)
    return figure
