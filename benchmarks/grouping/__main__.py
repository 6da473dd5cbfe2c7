"""Count how often the groups of ``mtlkit diagnose`` are the planted ones.

    python -m benchmarks.grouping --seeds 20

writes ``benchmarks/grouping/results.md`` row by row; rows that it already has are kept. Seeds 100 and up
are counted; the rule was chosen on seeds 0 to 11. The last column says how often the same cut finds the
groups in the correlations of the labels themselves, without a network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.grouping.planted import diagnose, found_in_targets, planted

RESULTS = Path(__file__).with_name("results.md")
FIRST_SEED = 100
HEAD = "| tasks | planted | sizes | strength | found | in the labels |\n|---|---|---|--:|--:|--:|\n"
SETTINGS = [
    ("regression", "no structure", (1,) * 6, 0.0),
    ("regression", "groups", (3, 3), 0.7),
    ("regression", "groups", (2, 2, 2), 0.7),
    ("regression", "one group", (6,), 0.9),
    ("regression", "no structure", (1,) * 12, 0.0),
    ("regression", "groups", (4, 4, 4), 0.7),
    ("regression", "groups", (3, 3), 0.5),
    ("binary", "no structure", (1,) * 6, 0.0),
    ("binary", "groups", (3, 3), 0.7),
    ("regression", "no structure", (1,) * 4, 0.0),
    ("regression", "groups", (3, 3), 0.9),
    ("binary", "groups", (3, 3), 0.9),
    ("binary", "groups", (3, 3), 0.5),
    ("regression", "groups", (3, 3), 0.3),
]


def first_cells(kind: str, name: str, sizes: tuple[int, ...], strength: float) -> str:
    """Return the cells of a row that say what was planted."""
    return f"| {kind} | {name} | {' + '.join(map(str, sizes))} | {strength} |"


def main() -> None:
    """Run all settings and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = given.output.read_text().splitlines() if given.output.exists() else []
    done: dict[int, str] = {}
    for place, setting in enumerate(SETTINGS):
        for line in known:
            if line.startswith(first_cells(*setting)):
                done[place] = line
    for place, (kind, name, sizes, strength) in enumerate(SETTINGS):
        if place in done:
            continue
        drawn = (sizes, strength, kind)
        seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
        groups = [diagnose(seed, *drawn).summary.grouping.groups for seed in seeds]
        right = sum(found == planted(sizes) for found in groups)
        labels = "–"
        if name == "groups":
            labels = f"{sum(found_in_targets(seed, *drawn) for seed in seeds)} of {given.seeds}"
        row = first_cells(kind, name, sizes, strength)
        done[place] = f"{row} {right} of {given.seeds} | {labels} |"
        given.output.write_text(HEAD + "\n".join([*(done[key] for key in sorted(done)), ""]))


if __name__ == "__main__":
    main()
