"""The paper's illustrative problems: level plots of one seed, or the fraction of seeds that succeed.

Usage: python -m benchmarks.paper.toy avocado|nonconvex|logistic|shares [--seed N] [--output DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.paper.toy import plots
from benchmarks.paper.toy.problems import CONVEX, NONCONVEX
from benchmarks.paper.toy.shares import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=("avocado", "nonconvex", "logistic", "shares"))
    parser.add_argument("--seed", type=int, default=0, help="of the level plots")
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds of the fractions")
    parser.add_argument("--output", type=Path, default=Path("runs/toy"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.problem == "shares":
        figure = plots.shares_figure(measure(arguments.output, arguments.seeds))
    elif arguments.problem == "logistic":
        figure = plots.logistic_figure(arguments.seed)
    else:
        problem = CONVEX if arguments.problem == "avocado" else NONCONVEX
        figure = plots.regression_figure(problem, arguments.seed)
    for suffix in ("png", "svg"):
        target = arguments.output / f"{arguments.problem}.{suffix}"
        figure.savefig(target, dpi=110)
        print(target)


if __name__ == "__main__":
    main()
