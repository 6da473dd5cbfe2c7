"""Collect the findings of benchmarks/results about each method."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mtlkit.config.registry import methods
from mtlkit.config.spec import parse_spec
from mtlkit.report.results import Comparison
from mtlkit.report.tables import build_table
from mtlkit.report.verdict import Finding

HEAD = ["| data | run as | compared with | difference | verdict |", "|---|---|---|---|---|"]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# parts that go before a method in many runs and are not what was compared
_PREPARING = {"normalize"}


@cache
def evidence() -> dict[str, list[str]]:
    """Return rows of a Markdown table, one per comparison, by the names of the methods compared."""
    found: dict[str, list[str]] = {}
    for folder in sorted(path.parent for path in RESULTS.glob("*/comparison.json")):
        comparison = Comparison.load(folder)
        specs = comparison.config.get("methods", {})
        for finding in build_table(comparison).verdict.findings:
            for name in _compared(specs.get(finding.method)):
                found.setdefault(name, []).append(_line(folder.name, finding))
    return found


def _compared(entry: object) -> list[str]:
    """Return the pages that an entry of a comparison belongs to; none if it has several parts."""
    spec = entry.get("method") if isinstance(entry, dict) else entry
    if not isinstance(spec, str):
        return []
    names = [part.name for part in parse_spec(spec) if part.name not in _PREPARING]
    if len(names) != 1:
        return []
    parts = [part.name for part in methods.expand(names[0])]
    return list(dict.fromkeys([names[0], *parts])) if len(parts) == 1 else names


def _line(folder: str, finding: Finding) -> str:
    interval = finding.interval
    points = f"{interval.mean:+.1f} ({interval.low:+.1f} to {interval.high:+.1f})" if interval else "–"
    status = f"**{finding.status}**" if finding.status in ("better", "worse") else finding.status
    cells = [f"[{folder}](../results/{folder}.md)", f"`{finding.method}`", f"`{finding.against}`"]
    return f"| {' | '.join([*cells, points, status])} |"
