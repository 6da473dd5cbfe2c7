"""``mtlkit report``: write the HTML file and the tables of results on disk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from mtlkit.cli import app


@app.command(epilog="Example: mtlkit report runs/mine --output mine.html")
def report(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `mtlkit compare` or `mtlkit train`.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: report.html in the folder."),
    ] = None,
    tables: Annotated[
        bool, typer.Option(help="Write table.md, table.tex and table.csv next to it.")
    ] = True,
) -> None:
    """Write a self-contained HTML report of results, and their tables."""
    from mtlkit.config.files import write_text
    from mtlkit.report.report import write_report
    from mtlkit.report.results import HEADER, Comparison, append_result, read_trainer_run
    from mtlkit.report.tables import build_table, table_files
    from mtlkit.report.verdict_text import plural

    is_comparison = (folder / HEADER).is_file()
    comparison = Comparison.load(folder) if is_comparison else read_trainer_run(folder)
    with contextlib.suppress(OSError):  # a read-only folder
        for run in comparison.recovered:
            append_result(folder, run)
    if comparison.recovered:
        runs = plural(len(comparison.recovered), "run")
        typer.echo(f"repaired results.jsonl: {runs} from result.json")
    written = write_report(comparison, folder / "report.html" if output is None else output)
    typer.echo(f"wrote {written}")
    if tables and is_comparison:
        for name, text in table_files(build_table(comparison)).items():
            write_text(written.parent / name, text)
            typer.echo(f"wrote {written.parent / name}")
