"""A ResNet18 step with every method, as a ratio to the plain sum: the table of the docs' speed page.

Usage: python -m benchmarks.speed costs --cpu-time --json benchmarks/speed/costs.json
"""

from __future__ import annotations

import torch

from benchmarks.speed.steps import TASKS, Candidate
from benchmarks.speed.timing import Row, interleave, ratio, set_threads
from mtlkit.config.registry import methods

BATCH, ROUNDS = 64, 5


def run() -> list[Row]:
    """Time every built-in method; an alias takes as long as what it stands for."""
    set_threads(2)
    torch.manual_seed(0)
    batch = torch.randn(BATCH, 3, 32, 32), torch.randint(2, (BATCH, TASKS)).float()
    group = f"a ResNet18 step at K = {TASKS}, plain sum = 1"
    plain = Candidate(None, batch)
    rows = []
    for name in sorted({*methods.names()} - {*methods.aliases()} | {"rotograd"}):
        seconds = interleave({"plain": plain, name: Candidate(name, batch)}, ROUNDS, warmup=1)
        rows.append(Row(group, name, round(ratio(seconds, name, "plain"), 3)))
    return rows
