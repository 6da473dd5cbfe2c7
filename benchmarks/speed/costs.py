"""What a step with each method adds at K = 10: the figures in ``mtlkit methods`` and the docs' table.

``python -m benchmarks.speed.costs`` measures them and keeps them in the package.
"""

from __future__ import annotations

from benchmarks.speed.timing import Row
from mtlkit.cli.costs import COSTS, Costs, measure_costs, write_costs


def run() -> list[Row]:
    """Every method, one thread."""
    return _rows(measure_costs())


def _rows(costs: Costs) -> list[Row]:
    group = f"a step's extra at K=10, (20, 512) features; the plain step is {costs.plain:.2f} ms"
    return [Row(group, name, value, "ms") for name, value in costs.added.items()]


if __name__ == "__main__":
    measured = measure_costs()
    write_costs(measured)
    for row in _rows(measured):
        print(f"{row.name:16} {row.value:8.2f} ms")
    print(f"{measured.note}\nwritten to {COSTS}")
