"""Count how often the groups of ``mtlkit diagnose`` are the planted ones.

    python -m benchmarks.grouping --seeds 20

writes ``benchmarks/grouping/results.md`` row by row; rows that it already has are kept. Seeds 100 and up
are counted; the rule was chosen on seeds 0 to 11.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.grouping.planted import diagnose, planted

RESULTS = Path(__file__).with_name("results.md")
FIRST_SEED = 100
HEAD = "| tasks | planted | sizes | strength | found |\n|---|---|---|--:|--:|\n"
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
    ("regression", "groups", (3, 3), 0.3),
]


def main() -> None:
    """Run all settings and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = given.output.read_text() if given.output.exists() else HEAD
    for kind, name, sizes, strength in SETTINGS:
        row = f"| {kind} | {name} | {' + '.join(map(str, sizes))} | {strength} |"
        if row in text:
            continue
        found = [diagnose(FIRST_SEED + k, sizes, strength, kind) for k in range(given.seeds)]
        right = sum(each.summary.grouping.groups == planted(sizes) for each in found)
        text += f"{row} {right} of {given.seeds} |\n"
        given.output.write_text(text)


if __name__ == "__main__":
    main()
