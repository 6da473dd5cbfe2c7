"""Draw the study of five tables from its runs: gains over the sum with corrected intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlkit.config.files import write_text
from mtlkit.report.significance import Interval, endpoint_intervals
from mtlkit.report.statistics import log_ratio

REFERENCE = "sum"
ROWS = ("single-task", "tuned sum", "imtl_g", "ridge", "forest", "boosting")
"""What is tested against the sum."""
BLUE, GRAY = "#1f77b4", "#808890"


def gains(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the endpoint by table, method and seed: the tasks' mean log-ratio to the sum."""
    main = runs[runs["main"]]
    keys = ["table", "seed", "task"]
    base = main[main["method"] == REFERENCE].set_index(keys)["value"]
    found = main.join(base.rename("base"), on=keys)
    found["gain"] = [
        log_ratio(row.value, row.base, bool(row.higher_is_better)) for row in found.itertuples()
    ]
    return found.groupby(["table", "method", "seed"], sort=False)["gain"].mean().reset_index()


def intervals(runs: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """Return, by table and row, the mean gain over the sum; Holm's rule over all of them together."""
    found = gains(runs)
    tables = list(dict.fromkeys(runs["table"]))
    families = []
    for table in tables:
        wide = found[found["table"] == table].pivot_table(index="method", columns="seed", values="gain")
        families.append(wide.reindex(ROWS).to_numpy())
    made = endpoint_intervals(*families)
    return {table: dict(zip(ROWS, each, strict=True)) for table, each in zip(tables, made, strict=True)}


def gains_table(runs: pd.DataFrame) -> str:
    """Return the gains over the sum as Markdown, and below them every task's main metric."""
    found = intervals(runs)
    lines = [f"| gain over the sum | {' | '.join(found)} |", "|:--|" + "--:|" * len(found)]
    for row in ROWS:
        cells = []
        for table in found:
            each = found[table][row]
            cell = f"{each.mean:+.1f} ({each.low:+.1f} to {each.high:+.1f})"
            cells.append(f"**{cell}**" if each.better or each.worse else cell)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += ["", "Median of each task's metric over the seeds:", ""]
    main = runs[runs["main"]]
    order = ["constant", *ROWS[3:], "single-task", REFERENCE, *ROWS[1:3]]
    lines += [f"| table | task | metric | {' | '.join(order)} |", "|:--|:--|:--|" + "--:|" * len(order)]
    for (table, task, metric), part in main.groupby(["table", "task", "metric"], sort=False):
        medians = part.groupby("method")["value"].median()
        cells = [f"{medians[name]:.3f}" for name in order]
        lines.append(f"| {table} | {task} | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def differences_figure(runs: pd.DataFrame) -> Any:
    """Draw gains over the sum, a panel per table; an interval without zero is filled."""
    from matplotlib.figure import Figure

    found = intervals(runs)
    figure = Figure(figsize=(9.3, 5.0), layout="constrained")
    panels = list(figure.subplots(2, 3, sharey=True).flat)
    for panel, (table, rows) in zip(panels, found.items(), strict=False):
        for place, each in enumerate(rows.values()):
            color = BLUE if each.better or each.worse else GRAY
            panel.plot([each.low, each.high], [place, place], color=color, linewidth=2)
            panel.plot(each.mean, place, "o", color=color, markersize=5)
        panel.axvline(0, color=GRAY, linewidth=1)
        panel.set_title(table, fontsize=10)
        panel.set_xlabel("better than sum →", fontsize=9)
        panel.locator_params(axis="x", nbins=4)
    for panel in panels[len(found) :]:
        panel.remove()
    panels[0].set_yticks(np.arange(len(ROWS)), ROWS)
    panels[0].invert_yaxis()
    return figure


def redraw(folder: Path) -> None:
    """Write table and chart of the stored runs."""
    runs = pd.read_csv(folder / "tables.csv.gz")
    write_text(folder / "table.md", gains_table(runs))
    differences_figure(runs).savefig(folder / "differences.png", dpi=110)
