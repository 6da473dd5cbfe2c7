"""Redraw tables and figures of benchmarks/results from the stored runs, and the pages that show them.

Usage: python -m benchmarks.draw_results [--pages FOLDER]

A folder of results holds ``results.jsonl`` and ``comparison.json`` of a comparison, ``shares.json`` of
the toys, ``tables.csv.gz`` of the five tables, or ``runs.jsonl`` of the front of one training, and a
README: the paper's claim, what was run, what was found, the verdict.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.front.volumes import redraw as redraw_front
from benchmarks.overview import (
    beside_fronts,
    comparable,
    left_out,
    log_gains,
    on_seeds_of_front,
    overview,
)
from benchmarks.paper.toy.plots import shares_figure
from benchmarks.tables import draw as tables
from mtlkit.config.files import write_text
from mtlkit.report.metric_table import PRIMARY
from mtlkit.report.results import Comparison
from mtlkit.report.tables import ResultTable, build_table, to_markdown

RESULTS = Path(__file__).parent / "results"
REPOSITORY = "https://github.com/mtlkit/mtlkit/blob/main/benchmarks/results"
SITE = "https://mtlkit.github.io/mtlkit/latest/"
OVERVIEW = """\
Each cell has the log-ratio to single-task networks in hundredths, the mean over all tasks and seeds,
and in brackets the rank among the methods by the mean of the tasks' ranks; ties share a rank. The
brackets after a data set are the numbers of tasks and seeds. Budgets and networks differ, so do not
compare columns with each other. Most differences within a column are not significant: see the page of
each data set. The mean place is over the data sets that a method was run on: 0 means always first, 1
always last. Comparisons with fewer than four of these methods are left out: {left_out}. On cifar10 the
area under the ROC curve counts, because some single-task networks have an F1 of zero, and all methods
but the sum have R_k."""
FRONTS = """\
The second table compares the methods with weighted sums: random loss weights, drawn uniformly from
the simplex and trained like the methods. The brackets after a data set are the numbers of sets of
weights and of seeds. The first number in a cell is how many sets of weights are at least as good as the
method on every task; the second is how many are not better on any task, by means over these seeds. If
the first number is 0, the method lies on or beyond the front. One seed says little about a method that
is close to it."""
REPEATED = {"units_ten", "fold_every"}
"""Comparisons on the data of another one, which count once in the tables over all data sets."""
COSINE_PANELS = {
    "cifar10": {
        "methods, with R_k": (
            "rotograd 128",
            "sum with R_k",
            "graddrop with R_k",
            "pcgrad with R_k",
            "mgda with R_k",
            "gradnorm with R_k",
            "imtl_g with R_k",
        ),
        "size of the rotations": ("sum", "rotograd 16", "rotograd 32", "rotograd 64", "rotograd 128"),
    }
}
"""Methods of each panel of the cosines, for the folders where these are a claim of the paper."""
BLUE, GRAY = "#1f77b4", "#808890"


def folders() -> list[Path]:
    """Return the folders with results, in the order of their READMEs' first lines."""
    return sorted(path.parent for path in RESULTS.glob("*/README.md"))


def redraw(folder: Path) -> None:
    """Write table, verdict and figure of one folder."""
    if (folder / "shares.json").exists():
        shares = json.loads((folder / "shares.json").read_text())
        shares_figure(shares).savefig(folder / "shares.png", dpi=110)
        return
    if (folder / "tables.csv.gz").exists():
        tables.redraw(folder)
        return
    if (folder / "runs.jsonl").exists():
        redraw_front(folder)
        return
    if not (folder / "comparison.json").exists():
        return
    comparison = Comparison.load(folder)
    table = build_table(comparison)
    write_text(folder / "table.md", to_markdown(table))
    lines = [each.sentence for each in (*table.verdict.findings, *table.verdict.single_task)]
    verdict = [table.verdict.text, "", *(f"- {line}" for line in lines)]
    write_text(folder / "verdict.md", "\n".join(verdict) + "\n")
    differences_figure(table).savefig(folder / "differences.png", dpi=110)
    shown = comparable(folder.name, comparison)
    if shown.front_labels and shown.baseline is not None:
        front_figure(shown).savefig(folder / "front.png", dpi=110)
    if folder.name in COSINE_PANELS:
        cosines = json.loads((folder / "cosines.json").read_text())
        cosines_figure(cosines, COSINE_PANELS[folder.name]).savefig(folder / "cosines.png", dpi=110)


def differences_figure(table: ResultTable) -> Any:
    """Draw differences from the reference with corrected intervals: the endpoint, then each task."""
    columns = [each for each in table.columns if any(row.cells[each.key].claim for row in table.rows)]
    columns.sort(key=lambda column: column.key != PRIMARY)
    rows = [row for row in table.rows if row.cells[columns[0].key].claim is not None]
    figure, panels = _panels(len(columns), 0.25 * len(rows) + 1.2)
    for panel, column in zip(panels, columns, strict=True):
        for place, row in enumerate(rows):
            found = row.cells[column.key].claim
            if found is not None:
                panel.plot([found.low, found.high], [place, place], color=BLUE, linewidth=2)
                panel.plot(found.mean, place, "o", color=BLUE, markersize=5)
        panel.axvline(0, color=GRAY, linewidth=1)
        title = "primary endpoint" if column.key == PRIMARY else f"{column.group}: {column.title}"
        panel.set_title(title, fontsize=10)
        panel.set_xlabel(f"better than {table.reference} →", fontsize=9)
        panel.locator_params(axis="x", nbins=4)
    panels[0].set_yticks(range(len(rows)), [row.label for row in rows])
    panels[0].invert_yaxis()
    return figure


def front_figure(comparison: Comparison) -> Any:
    """Draw log-ratios to single-task networks, a panel per task: methods, above them weightings.

    They are means over the seeds that the weightings were trained on.
    """
    comparison = on_seeds_of_front(comparison)
    labels = [label for label in comparison.labels if label != comparison.baseline]
    figure, panels = _panels(len(comparison.tasks), 0.25 * len(labels) + 1.5)
    drawn, methods = log_gains(comparison, comparison.front_labels), log_gains(comparison, labels)
    for panel, task, gray, blue in zip(panels, comparison.tasks, drawn.T, methods.T, strict=True):
        panel.plot(gray, [0] * len(gray), "|", color=GRAY, markersize=11)
        panel.plot(blue, range(1, len(labels) + 1), "o", color=BLUE, markersize=5)
        panel.axvline(0, color=GRAY, linewidth=1)
        panel.set_title(task.name, fontsize=10)
        panel.set_xlabel(f"log-ratio to {comparison.baseline}, hundredths", fontsize=9)
        panel.locator_params(axis="x", nbins=4)
    panels[0].set_yticks(range(len(labels) + 1), [f"{len(drawn)} weightings", *labels])
    panels[0].invert_yaxis()
    return figure


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """Make a figure with at most three panels side by side, so that its letters stay readable."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.1 * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def cosines_figure(cosines: Mapping[str, list[Any]], panels: Mapping[str, Sequence[str]]) -> Any:
    """Draw the mean cosine of task and update gradients over training, with 90% intervals."""
    import numpy as np
    from matplotlib.figure import Figure
    from scipy import stats

    figure = Figure(figsize=(5.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, labels) in zip(axes, panels.items(), strict=True):
        for label in labels:
            runs = np.array(cosines[label])  # (seeds, rows, step and cosine)
            steps, values = runs[0, :, 0], runs[:, :, 1]
            mean, count = values.mean(axis=0), len(values)
            (line,) = axis.plot(steps, mean, label=label, linewidth=1.2)
            if count > 1:
                half = stats.t.ppf(0.95, count - 1) * values.std(axis=0, ddof=1) / count**0.5
                axis.fill_between(
                    steps, mean - half, mean + half, color=line.get_color(), alpha=0.2, linewidth=0
                )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.legend(fontsize=7, ncols=2, loc="lower right")
    axes[0].set_ylabel("cosine of task and update gradients", fontsize=9)
    return figure


def write_overview() -> None:
    """Write the table over all data sets."""
    found = {
        folder.name: comparable(folder.name, Comparison.load(folder))
        for folder in folders()
        if (folder / "comparison.json").exists() and folder.name not in REPEATED
    }
    text = OVERVIEW.format(left_out=", ".join(left_out(found)) or "none")
    tables = f"{text}\n\n{overview(found)}\n{FRONTS}\n\n{beside_fronts(found)}"
    write_text(RESULTS / "overview.md", tables)


def write_pages(target: Path) -> None:
    """Write the documentation's pages: an index, and one page per folder with its figures beside it."""
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    first = _site_links((RESULTS / "README.md").read_text().rstrip()).replace(
        "](paper.md)", "](paper_claims.md)"
    )
    names = [folder.name for folder in folders()]
    contents = "\n".join(["paper_claims", "all_data_sets", *names])
    write_text(target / "index.md", f"{first}\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n")
    write_text(target / "paper_claims.md", _site_links((RESULTS / "paper.md").read_text()))
    overview = _well_broken((RESULTS / "overview.md").read_text())
    write_text(target / "all_data_sets.md", f"# All data sets\n\n{overview}\n")
    for folder in folders():
        write_text(target / f"{folder.name}.md", _page(folder, target))


def _site_links(text: str) -> str:
    """Rewrite links of a file in the repository as links between pages of the site."""
    text = re.sub(r"\]\((\w+)/README\.md\)", r"](\1.md)", text)
    return re.sub(rf"\]\({re.escape(SITE)}(\w+)\.html", r"](../\1.md", text)


def _page(folder: Path, target: Path) -> str:
    """Return the README of a folder as a page, with its table; figures are copied beside it."""
    text = (folder / "README.md").read_text().rstrip()
    for image in folder.glob("*.png"):
        shutil.copy(image, target / f"{folder.name}_{image.name}")
    text = re.sub(r"\]\((\w+\.png)\)", rf"]({folder.name}_\1){{.light .chart}}", text)
    text = re.sub(r"\]\(\.\./(\w+)/README\.md\)", r"](\1.md)", text)
    text = text.replace("[`table.md`](table.md)", "the table below")
    table = folder / "table.md"
    if table.exists():
        values = re.sub("^##", "###", _well_broken(table.read_text()), flags=re.MULTILINE)
        text += f"\n\n## All values\n\n{values}"
    # files beside the README are in the repository, not on the site
    text = re.sub(r"\]\((table\.\w+)\)", rf"]({REPOSITORY}/{folder.name}/\1)", text)
    return f"{text}\n"


def _well_broken(table: str) -> str:
    """Return a table whose narrow cells break only before a deviation or a bracket."""
    table = table.rstrip().replace(" ± ", " ±\N{NO-BREAK SPACE}")
    return re.sub(r"\(\d[^)|]*\)", _unbroken, table)


def _unbroken(text: re.Match[str]) -> str:
    dash = "\N{WORD JOINER}–\N{WORD JOINER}"
    return text[0].replace(" ", "\N{NO-BREAK SPACE}").replace("–", dash)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=Path, help="write the documentation's pages into this folder")
    arguments = parser.parse_args()
    for folder in folders():
        redraw(folder)
        print(folder.relative_to(RESULTS.parent.parent))
    write_overview()
    if arguments.pages is not None:
        write_pages(arguments.pages)
        print(arguments.pages)


if __name__ == "__main__":
    main()
