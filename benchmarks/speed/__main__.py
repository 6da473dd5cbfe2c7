"""``make speed``: run the speed tables, or those that are named.

Usage: python -m benchmarks.speed [merges steps ...] [--json FILE] [--cpu-time]
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks.speed as package
from benchmarks.speed.timing import Row, use_cpu_time

NOT_TABLES = {"__main__", "by_hand", "stand_ins", "timing"}


def main() -> None:
    tables = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in NOT_TABLES)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=tables, help=f"any of: {', '.join(tables)}")
    parser.add_argument("--json", type=Path, help="also write the values to this file")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="growth, peers, steps: CPU time of one thread",
    )
    arguments = parser.parse_args()
    if arguments.cpu_time:
        use_cpu_time()
    unknown = set(arguments.tables) - set(tables)
    if unknown:
        parser.error(f"unknown table {', '.join(sorted(unknown))}; there are: {', '.join(tables)}")
    rows: list[Row] = []
    console = Console()
    for name in arguments.tables:
        with console.status(f"measuring {name}"):
            found = importlib.import_module(f"benchmarks.speed.{name}").run()
        rows += found
        for group in dict.fromkeys(row.group for row in found):
            table = Table(title=group, title_justify="left")
            for heading, side in (("", "left"), ("value", "right"), ("limit", "left")):
                table.add_column(heading, justify=side)
            for row in found:
                if row.group == group:
                    table.add_row(row.name, f"{row.value:.3f} {row.unit}", row.verdict)
            console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    missed = [row for row in rows if row.verdict.startswith("MISSED")]
    console.print(f"{len(rows)} values, {len(missed)} beyond their limit")


if __name__ == "__main__":
    main()
