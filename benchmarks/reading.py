"""How much code one training step visits: files, functions and their lines, and changes of file.

    python -m benchmarks.reading [--list] [spec ...]

A reader who follows a step has to open that many files, read those lines and jump that often. It counts
calls of Python functions in the third step of a small network, with features and losses as a user has
them. The lines are those of the functions' source, with signatures, docstrings and comments.
--list prints the functions by file.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import mtlkit

ROOT = str(Path(mtlkit.__file__).parent)


class Visits:
    """Functions of mtlkit in the order in which they are called."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            self.calls.append(code)

    @property
    def functions(self) -> dict[str, dict[str, int]]:
        """Return numbers of lines by file and function."""
        found: dict[str, dict[str, int]] = {}
        for code in dict.fromkeys(self.calls):
            file = str(Path(code.co_filename).relative_to(ROOT))
            # a function that is visited inside another one is read there
            found.setdefault(file, {})[code.co_qualname] = len(inspect.getsourcelines(code)[0])
        for functions in found.values():
            for name in [n for n in functions if n.rpartition(".<locals>.")[0] in functions]:
                functions[name] = 0
        return found

    @property
    def changes_of_file(self) -> int:
        return sum(a.co_filename != b.co_filename for a, b in pairwise(self.calls))


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", default=["pcgrad", "rotograd", "mgda"])
    parser.add_argument("--list", action="store_true", help="print the functions by file")
    arguments = parser.parse_args()
    for spec in arguments.specs:
        visits = visit(spec)
        files = visits.functions
        lines = sum(sum(functions.values()) for functions in files.values())
        print(
            f"{spec}: {len(files)} files, {sum(map(len, files.values()))} functions, {lines} lines, "
            f"{len(visits.calls)} calls, {visits.changes_of_file} changes of file"
        )
        for file, functions in files.items() if arguments.list else ():
            print(f"  {file}: {sum(functions.values())} lines")
            for name, length in functions.items():
                print(f"    {name}: {length}")


if __name__ == "__main__":
    main()
