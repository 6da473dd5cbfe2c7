"""Write the level plots of an illustrative problem, with and without RotoGrad.

Usage: python -m benchmarks.paper.toy avocado|nonconvex|logistic [--output DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.paper.toy import plots
from benchmarks.paper.toy.problems import CONVEX, NONCONVEX


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=("avocado", "nonconvex", "logistic"))
    parser.add_argument("--output", type=Path, default=Path("runs/toy"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.problem == "logistic":
        figure = plots.logistic_figure()
    else:
        figure = plots.regression_figure(CONVEX if arguments.problem == "avocado" else NONCONVEX)
    for suffix in ("png", "svg"):
        target = arguments.output / f"{arguments.problem}.{suffix}"
        figure.savefig(target, dpi=110)
        print(target)


if __name__ == "__main__":
    main()
