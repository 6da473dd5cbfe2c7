"""``mtlkit compare``: several methods and seeds on one data set, with statistics and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.notes import default_folder, resumable, warnings_as_notes
from mtlkit.cli.options import ConfigFile, OutputFolder, command_of, with_settings
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import ConfigError
from mtlkit.experiments.compare_config import CONFIG, CompareConfig


@app.command(cls=command_of(CompareConfig))
@with_settings(CompareConfig)
def compare(
    config: ConfigFile = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="A demo of two minutes on embedded data.")
    ] = False,
    budget: Annotated[
        str, typer.Option(help="full, or small: apply the file's settings for a small machine.")
    ] = "full",
    output: OutputFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and about how long; train nothing.")
    ] = False,
    same_budget: Annotated[
        bool, typer.Option("--same-budget", help="Train each single-task network for 1/K of the steps.")
    ] = False,
    **flags: Any,
) -> None:
    """Compare methods on several seeds, with single-task baselines, statistics and a report.

    Example: [bold]mtlkit compare --data multidigits --methods sum,pcgrad,rotograd -o runs/mine[/bold]

    The same command resumes a comparison that was stopped or killed.
    """
    if same_budget:
        flags["single_task"] = "same_budget"
    if demo and (config is not None or dry_run or "data" in flags):
        raise ConfigError(
            "--demo has its own data and settings; use it without --data, --config and --dry-run"
        )
    if demo:
        _demo(flags, Path("runs/demo") if output is None else output)
        return
    settings: dict[str, Any] = {} if config is None else read_yaml(config)
    source = "compare" if config is None else str(config)
    for key in ("small", "field"):  # flags override these parts of the file, too
        if isinstance(settings.get(key), dict):
            settings[key] = {k: v for k, v in settings[key].items() if k not in flags}
    chosen = CompareConfig.make({**settings, **flags}, source, budget)
    name = f"compare-{chosen.data}" if config is None else config.stem
    folder = default_folder(name) if output is None else output
    if dry_run:
        from mtlkit.experiments.compare import Work

        with warnings_as_notes():
            typer.echo("\n".join(Work(chosen, folder).describe()))
        return
    _run(chosen, folder, ["-c", str(folder / CONFIG), "-o", str(folder)])


def _demo(changes: dict[str, Any], folder: Path) -> None:
    """Run the two comparisons of the demo, and write a page about both."""
    from mtlkit.experiments.demo import PARTS, write_demo_page

    made = {}
    for part in PARTS:
        typer.echo(part.story, err=True)
        made[part.name] = _run(part.config(changes), folder / part.name, ["--demo", "-o", str(folder)])
        typer.echo()
    typer.echo(f"report of both: {write_demo_page(made, folder)}")


def _run(chosen: Any, folder: Path, resume: list[str]) -> Any:
    """Run and print a comparison; ``resume`` has the arguments to resume it."""
    typer.echo(f"loading the data; output: {folder}", err=True)  # torch alone takes seconds
    from mtlkit.experiments.compare import run_comparison, seconds_per_seed
    from mtlkit.experiments.terminal import print_table
    from mtlkit.report.tables import build_table

    with resumable("compare", *resume):
        comparison = run_comparison(chosen, folder)
    typer.echo(comparison.title)
    table = build_table(comparison)
    print_table(table)
    seconds = seconds_per_seed(chosen, comparison)
    if table.verdict.labels("not decided") and chosen.minutes is None and 0 < seconds < 60:
        typer.echo(f"another seed takes about {seconds:.0f} s; --minutes 10 adds as many as fit")
    failed = [run for run in comparison.runs if run.error]
    for run in failed:
        typer.echo(f"failed: {run.label}, seed {run.seed}: {run.error}", err=True)
    if failed:
        typer.echo(f"tracebacks: error.log in the folders of these runs in {folder / 'runs'}", err=True)
    typer.echo(f"tables: {folder / 'table.md'}, table.tex, table.csv; runs: {folder / 'results.csv'}")
    typer.echo(f"report: {folder / 'report.html'}")
    if failed:
        raise typer.Exit(1)
    return comparison
