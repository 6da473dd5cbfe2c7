"""The cost of each method: its runs, and the tuning before them."""

from __future__ import annotations

import math

from mtlkit.report.charts import Point, Row, point_chart, row_chart
from mtlkit.report.page import Cell, Charts, Head, Listing, Note, Section
from mtlkit.report.results import Comparison, Run
from mtlkit.report.statistics import spread
from mtlkit.report.tables import ResultTable


def method_costs(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Sum the cost of each method over all seeds, from finished runs with a time.

    Optimizer steps of single-task networks are summed over the networks.

    >>> from mtlkit.report import Comparison, Run
    >>> runs = [Run("sum", seed, seconds=2.0, steps=10) for seed in range(3)]
    >>> method_costs(Comparison("digits", [], runs))["sum"]["seconds in all"]
    6.0
    """
    found = {}
    for label in comparison.labels:
        runs = [run for run in comparison.of(label) if run.status == "done" and run.seconds is not None]
        if runs:
            tuning = comparison.tuning.get(label, {})
            seconds, steps = sum(run.seconds or 0.0 for run in runs), sum(map(_steps, runs))
            found[label] = {
                "runs": len(runs),
                "seconds": seconds,
                "steps": steps,
                "trials": int(tuning.get("trials") or 0),
                "tuning seconds": float(tuning.get("seconds") or 0.0),
                "tuning steps": int(tuning.get("steps") or 0),
                "seconds in all": seconds + float(tuning.get("seconds") or 0.0),
                "steps in all": steps + int(tuning.get("steps") or 0),
            }
    return found


def _steps(run: Run) -> int:
    """Return the number of steps of a run; if unknown, the last step in its history."""
    return run.steps if run.steps is not None else max((row.step for row in run.history), default=0)


def cost_section(comparison: Comparison, table: ResultTable) -> Section:
    """Show the cost of each method and its improvement."""
    costs = method_costs(comparison)
    if not costs:
        return Section("cost", "", [])
    places = {label: index for index, label in enumerate(comparison.labels)}
    tuned = any(cost["trials"] for cost in costs.values())
    columns = list(next(iter(costs.values())))[: None if tuned else 3]
    rows: list[list[Cell | str]] = []
    for label, cost in costs.items():
        cells = [Cell(f"{cost[name]:,.0f}".replace(",", "\u202f"), cost[name]) for name in columns]
        rows.append([Cell(label, places[label], series=places[label]), *cells])
    heads = [Head(name, "high" if name == "runs" else "low") for name in ("method", *columns)]
    found = {row.label: row.cells.get("delta/mean") for row in table.rows}
    gains = {label: cell.spread.median for label, cell in found.items() if cell is not None}
    points = [
        Point(places[label], label, cost["seconds in all"], gains.get(label, math.nan))
        for label, cost in costs.items()
    ]
    timed = any(column.kind == "time" for column in table.columns)
    what = "seconds of all runs" + (" and trials" if tuned else "")
    reference, positive = comparison.reference or "reference", (0.0, None)
    ratios = _medians(comparison, "step_ratio") if timed else []
    seconds = _medians(comparison, "seconds")
    charts = [
        point_chart(points, "Improvement and cost", what, "mean improvement, %", x_bounds=positive),
        row_chart(ratios, "Time of a step", f"× {reference}", marker=1.0, bounds=positive),
        row_chart(seconds, "Time of a run", "seconds, median over runs", bounds=positive),
    ]
    note = "Over all seeds; single-task: all networks together."
    note += "" if tuned else " This comparison has no record of tuning."
    listing = Listing(heads, rows, name="costs", sortable=len(rows) > 2)
    return Section("cost", "Cost", [listing, Note(note), Charts(charts)])


def _medians(comparison: Comparison, attribute: str) -> list[Row]:
    """Return the median of an attribute of the runs of each method."""
    return [
        Row(series, label, spread([getattr(run, attribute) for run in comparison.of(label)]).median)
        for series, label in enumerate(comparison.labels)
    ]
