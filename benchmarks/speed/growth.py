"""What a method adds to a plain step as tasks K, features d and rotated size m grow, in milliseconds.

Usage: python -m benchmarks.speed.growth benchmarks/speed/growth.json docs/images/growth.svg

draws the chart of the documentation from what ``python -m benchmarks.speed growth --cpu-time --json
FILE.json`` has measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import mtlkit
from benchmarks.speed.timing import Row, chart_command, interleave, set_threads

BATCH, WIDTH = 64, 256
STEPS = 4  # so that one of them turns rotations that wait for every fourth
GROUP = "added to a step, MLP, batch 64: {}, {} = {}"


@dataclass(frozen=True)
class Panel:
    """The size that grows, and the methods that are timed; all else is constant."""

    letter: str
    title: str
    sizes: tuple[int, ...]
    specs: Mapping[str, str]
    tasks: int = 5
    features: int = 256

    def setting(self, size: int) -> tuple[int, int]:
        """Numbers of tasks and features."""
        return (
            size if self.letter == "K" else self.tasks,
            size if self.letter == "d" else self.features,
        )


PANELS = (
    Panel(
        "K",
        "tasks K (d = m = 256)",
        (2, 5, 10, 20, 40),
        {
            "pcgrad": "pcgrad",
            "upgrad": "upgrad",
            "rotograd(fold_every=1)": "rotograd(fold_every=1)",
            "pcgrad(wrt=parameters)": "pcgrad(wrt=parameters)",
        },
    ),
    Panel(
        "d",
        "features d (K = 5, m = 64)",
        (64, 128, 256, 512, 1024, 2048),
        {
            "pcgrad": "pcgrad",
            "upgrad": "upgrad",
            "rotograd(fold_every=1)": "rotograd(size=64, fold_every=1)",
            "pcgrad(wrt=parameters)": "pcgrad(wrt=parameters)",
        },
    ),
    Panel(
        "m",
        "rotated size m (K = 5, d = 1024)",
        (64, 128, 256, 512, 1024),
        {
            "rotograd(fold_every=1)": "rotograd(size={m}, fold_every=1)",
            "rotograd, update_every=4": "rotograd(size={m}, update_every=4)",
            "rotograd, blocks=4": "rotograd(size={m}, blocks=4, fold_every=1)",
        },
        features=1024,
    ),
)
COLORS = {
    "pcgrad": "#2a78d6",
    "upgrad": "#1d9a8a",
    "rotograd(fold_every=1)": "#e6850e",
    "pcgrad(wrt=parameters)": "#c2489b",
    "rotograd, update_every=4": "#b8a11c",
    "rotograd, blocks=4": "#8f6fd8",
}


class _Steps:
    """Runs some steps with SGD."""

    def __init__(self, spec: str, tasks: int, features: int) -> None:
        torch.manual_seed(0)
        self.backbone = nn.Sequential(
            *(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()),
            nn.Linear(WIDTH, features),
        )
        self.heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(tasks))
        self.method = mtlkit.create_method(spec, tasks, feature_dim=features)
        modules = nn.ModuleList([self.backbone, self.heads, self.method])
        self.optimizer = torch.optim.SGD(modules.parameters(), lr=1e-3)
        self.x, self.y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, tasks)

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            self.method.total(self._losses()).backward()
            self.optimizer.step()

    def _losses(self) -> list[Tensor]:
        z = self.backbone(self.x)
        views = [z] * len(self.heads) if self.method.is_sum else self.method(z)
        return [
            nn.functional.mse_loss(head(view)[:, 0], self.y[:, k])
            for k, (head, view) in enumerate(zip(self.heads, views, strict=True))
        ]


def run(rounds: int = 15) -> list[Row]:
    """Time the methods of a panel and the plain sum by turns, for each size."""
    from threadpoolctl import threadpool_limits

    set_threads(1)
    with threadpool_limits(1):  # of the solvers too: a waiting thread would count as CPU time
        return [row for panel in PANELS for size in panel.sizes for row in _measure(panel, size, rounds)]


def _measure(panel: Panel, size: int, rounds: int) -> list[Row]:
    setting = panel.setting(size)
    steps = {"plain": _Steps("sum", *setting)}
    steps |= {name: _Steps(spec.format(m=size), *setting) for name, spec in panel.specs.items()}
    seconds = interleave(steps, rounds)
    plain = seconds.pop("plain")
    added = {name: [a - b for a, b in zip(own, plain, strict=True)] for name, own in seconds.items()}
    group = GROUP.format(panel.title, panel.letter, size)
    return [
        Row(group, name, 1000 * statistics.median(found) / STEPS, "ms")
        for name, found in {"plain": plain, **added}.items()
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draw a panel per size that grows, on logarithmic axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    gray = "#6f7782"  # 4.5 to 1 on white and on black
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    found = {(row.group, row.name): row.value for row in rows}
    with rc_context(dict.fromkeys(inks, gray) | {"svg.hashsalt": "growth"}):
        figure = Figure(figsize=(8.5, 3.4), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        drawn = {}
        for axes, panel in zip(panels, PANELS, strict=True):
            for name in ("plain", *panel.specs):
                groups = [GROUP.format(panel.title, panel.letter, size) for size in panel.sizes]
                values = [found[group, name] for group in groups]
                style = {"color": gray, "linestyle": ":"} if name == "plain" else {"marker": "o"}
                style |= {"color": COLORS[name]} if name in COLORS else {}
                label = "the plain step itself" if name == "plain" else name
                (drawn[label],) = axes.loglog(panel.sizes, values, markersize=3.5, **style)
            axes.set_xticks(panel.sizes, map(str, panel.sizes))
            axes.minorticks_off()
            axes.set_title(panel.title, fontsize=10)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        panels[0].set_ylabel("added to a step, ms")
        panels[0].yaxis.set_major_formatter("{x:g}")
        legend = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 9}
        figure.legend(drawn.values(), drawn.keys(), **legend)
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    chart_command(draw, "growth")
