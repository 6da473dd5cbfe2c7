"""The Helmholtz equation of the tutorial, four ways to combine the losses, ten seeds.

Usage: python -m benchmarks.physics

It writes ``benchmarks/physics/results.md``. Settings were chosen with seeds 0 to 2, which are not used.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import mtlkit
from mtlkit.config.files import write_text

SPECS = (
    "sum",
    "relobralo",
    "lr_annealing(wrt=parameters)",
    "lr_annealing(wrt=parameters, reference=mean)",
    "config(wrt=parameters)",
)
SEEDS = range(10, 20)
STEPS = 2000
SOLVED = 0.1
"""A relative error below this counts as solved."""


def solution(x: Tensor) -> Tensor:
    """``u = sin(3 pi x)``, zero at both ends of [-1, 1]."""
    return torch.sin(3 * math.pi * x)


def losses_of(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the mean squares of the residual of ``u'' + u = f`` and of the boundary values."""
    x = x.requires_grad_()
    u = net(x)
    (u_x,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    right_side = (1 - (3 * math.pi) ** 2) * solution(x)
    ends = torch.tensor([[-1.0], [1.0]])
    return {
        "residual": (u_xx + u - right_side).square().mean(),
        "boundary": net(ends).square().mean(),
    }


def train(spec: str, seed: int) -> float:
    """Train a network and return its relative L2 error."""
    torch.manual_seed(seed)
    sizes = (1, 50, 50, 50)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
    net = nn.Sequential(*layers, nn.Linear(50, 1))
    method = mtlkit.create_method(spec, tasks=("residual", "boundary"))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        losses = losses_of(net, 2 * torch.rand(128, 1) - 1)
        optimizer.zero_grad()
        method.total(losses).backward()
        optimizer.step()
        schedule.step()
    grid = torch.linspace(-1, 1, 401)[:, None]
    with torch.no_grad():
        return float((net(grid) - solution(grid)).norm() / solution(grid).norm())


def main() -> None:
    errors: dict[str, list[float]] = {spec: [] for spec in SPECS}
    seconds = dict.fromkeys(SPECS, 0.0)
    for seed in SEEDS:
        for spec in SPECS:  # interleaved, so that a slow moment affects all of them alike
            start = time.process_time()
            errors[spec].append(train(spec, seed))
            seconds[spec] += time.process_time() - start
        print(
            f"seed {seed}: " + ", ".join(f"{spec} {errors[spec][-1]:.1%}" for spec in SPECS), flush=True
        )
    lines = [
        "| | median error | range | solved | p against the sum | time, sum = 1 |",
        "|---|--:|---|--:|--:|--:|",
    ]
    logs = {spec: np.log(values) for spec, values in errors.items()}
    for spec, values in errors.items():
        p = "–" if spec == "sum" else f"{stats.wilcoxon(logs[spec], logs['sum']).pvalue:.3f}"
        row = [f"`{spec}`", f"{np.median(values):.1%}", f"{min(values):.1%} to {max(values):.1%}"]
        row += [f"{sum(value < SOLVED for value in values)} of {len(values)}", p]
        ratio = f"{seconds[spec] / seconds['sum']:.2f}"
        lines.append(f"| {' | '.join([*row, ratio])} |")
    write_text(Path(__file__).with_name("results.md"), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
