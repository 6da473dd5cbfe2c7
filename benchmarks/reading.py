"""How much code one training step visits: functions of mtlkit, and changes from file to file.

    python -m benchmarks.reading [spec ...]

A reader who follows a step has to open that many functions and jump that often. It counts calls of
Python functions in the third step of a small network, with features and losses as a user has them.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import mtlkit

ROOT = str(Path(mtlkit.__file__).parent)


class Visits:
    """Functions of mtlkit in the order in which they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            self.calls.append((code.co_filename, code.co_name, code.co_firstlineno))

    @property
    def functions(self) -> int:
        return len(set(self.calls))

    @property
    def changes_of_file(self) -> int:
        files = [file for file, _, _ in self.calls]
        return sum(one != other for one, other in pairwise(files))


def visit(spec: str) -> Visits:
    """Count one step of ``spec``."""
    torch.manual_seed(0)
    backbone, heads = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 1) for _ in range(3))
    method = mtlkit.create_method(spec, 3, feature_dim=16)
    modules = nn.ModuleList([backbone, heads, method])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.01)
    visits = Visits()
    for step in range(3):
        optimizer.zero_grad()
        sys.setprofile(visits if step == 2 else None)
        views = method(backbone(torch.randn(4, 8)))
        losses = [head(view).square().mean() for head, view in zip(heads, views, strict=True)]
        method.total(losses).backward()
        sys.setprofile(None)
        optimizer.step()
    return visits


def main() -> None:
    for spec in sys.argv[1:] or ["pcgrad", "rotograd", "mgda"]:
        visits = visit(spec)
        print(
            f"{spec}: {visits.functions} functions, {len(visits.calls)} calls, "
            f"{visits.changes_of_file} changes of file"
        )


if __name__ == "__main__":
    main()
