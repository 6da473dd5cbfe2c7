"""Published results next to those of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mtlkit.report.endpoint import DELTA_M
from mtlkit.report.page import Block, Cell, Head, Listing, Note, Section
from mtlkit.report.results import Comparison
from mtlkit.report.statistics import Spread
from mtlkit.report.tables import ResultTable, format_number

_DEVIATIONS = 2.0
"""Number of published deviations that count as agreement."""


def published_section(comparison: Comparison, table: ResultTable) -> Section:
    """List the published Delta m of each method next to ours."""
    rows = (comparison.config.get("published") or {}).get("rows", ())
    if not rows:
        return Section("published", "", [])
    cells: list[list[Cell | str]] = []
    for row in rows:
        label = _label(comparison, row)
        found = next((each for each in table.rows if each.label == label), None)
        ours = found.cells[DELTA_M].spread if found and DELTA_M in found.cells else None
        cells.append(
            [
                row["method"],
                label or "",
                _shown(ours),
                Cell(format_number(row["delta_m"], 2), row["delta_m"]),
                f"±{row['spread']:g}" if row.get("spread") else "not published",
                agreement(row, ours),
                row["source"],
            ]
        )
    heads = [Head("published"), Head("method here"), Head("Δm here", "low"), Head("Δm published", "low")]
    heads += [Head("spread"), Head("within the published spread?"), Head("source")]
    notes: list[Block] = [
        Note(
            "Median ± standard deviation over seeds here; lower is better. Within: our median is at "
            "most two published standard deviations away."
        )
    ]
    return Section("published", "Published rows", [Listing(heads, cells), *notes])


def agreement(row: Mapping[str, Any], ours: Spread | None) -> str:
    """Return whether our median is within two deviations of a published row, in words.

    >>> agreement({"delta_m": 58.5, "spread": 3.2}, Spread(62.0, 2.0, 3))
    'yes'
    >>> agreement({"delta_m": 58.5}, Spread(62.0, 2.0, 3))
    'no spread is known'
    """
    if ours is None or not math.isfinite(ours.median):
        return "not run"
    if not row.get("spread"):
        return "no spread is known"
    return "yes" if abs(ours.median - row["delta_m"]) <= _DEVIATIONS * row["spread"] else "no"


def _label(comparison: Comparison, row: Mapping[str, Any]) -> str | None:
    """Return the label of a published method here, found by label or config string."""
    spec = row.get("spec")
    methods = {run.label: str(run.method).partition("(")[0] for run in comparison.runs}
    return next((label for label, name in methods.items() if spec in (label, name)), None)


def _shown(ours: Spread | None) -> Cell | str:
    if ours is None or not math.isfinite(ours.median):
        return ""
    small = "" if math.isnan(ours.std) else f"±{format_number(ours.std, 2)}"
    return Cell(format_number(ours.median, 2), ours.median, small=small)
