"""``mtlkit data``: the list of data sets, or a description and a preview of one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlkit.cli import app
from mtlkit.cli.options import Plugins
from mtlkit.cli.pages import page_width, print_description, print_options
from mtlkit.errors import SpecError

_FEW_TASKS = 20


@app.command(epilog="Example: mtlkit data 'table(file=people.csv, targets={income: binary})'")
def data(
    spec: Annotated[
        str | None, typer.Argument(help="A data set, such as multimnist or 'table(file=...)'.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with the files; default: $MTLKIT_DATA.")
    ] = None,
    preview: Annotated[
        Path | None, typer.Option(help="Draw some samples with labels to this file.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the preview: train, val or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, max=64, help="Samples in the preview.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of splits and augmentations.")] = 0,
    plugin: Plugins = None,
) -> None:
    """List the data sets, or describe one."""
    if spec is None:
        if preview is not None:
            raise SpecError(
                "--preview needs a data set, for example: mtlkit data multidigits --preview out.png"
            )
        _list(data_dir)
    else:
        _describe(spec, data_dir, seed, preview, split, count)


def _list(data_dir: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from mtlkit.data.base import datasets, list_datasets

    table = Table("name", "description", "files", box=None, header_style="bold")
    for name in list_datasets():
        factory = datasets.get(name)
        found = factory.files_found(data_dir) if hasattr(factory, "files_found") else None
        origin = getattr(factory, "origin", "embedded")
        state = {None: origin, True: "[green]found[/]", False: "not found"}[found]
        table.add_row(name, getattr(factory, "summary", ""), state)
    console = Console()
    console.print(table)
    console.print("\nWhere to get the files of a data set: mtlkit data NAME", highlight=False)


def _explain(factory: Any) -> None:
    """Describe a data set that has required options."""
    import inspect

    from mtlkit.cli.catalog import find_options

    typer.echo(f"{factory.name}: {factory.summary}\n")
    print_description(inspect.getdoc(factory) or "")
    print_options(find_options(factory))


def _describe(
    spec: str, data_dir: Path | None, seed: int, preview: Path | None, split: str, count: int
) -> None:
    from mtlkit.config.registry import missing_options
    from mtlkit.data.base import SPLITS, datasets, load_dataset, parse_dataset

    part = parse_dataset(spec)
    factory = datasets.get(part.name)
    if not part.options and missing_options(factory, ()):
        _explain(factory)
        return
    made = load_dataset(part, data_dir=data_dir, seed=seed)
    if preview is None and made.files_found(data_dir) is False:
        _describe_without_files(made)
        return
    chosen = made.split(split)  # first, because it reports errors in the files
    typer.echo(textwrap.fill(f"{made.title}: {made.summary}", page_width()))
    typer.echo(f"input: {' x '.join(map(str, made.input_shape))}")
    typer.echo("samples: " + ", ".join(f"{len(made.split(name))} {name}" for name in SPLITS))
    typer.echo(f"architecture: {made.default_architecture}")
    _list_tasks(made)
    _list_inputs(made)
    if preview is not None:
        from mtlkit.data.preview import write_preview

        write_preview(made, chosen, preview, count)
        typer.echo(f"wrote {preview}")


def _describe_without_files(made: Any) -> None:
    typer.echo(textwrap.fill(f"{made.spec}: {made.summary}", page_width()))
    typer.echo(f"architecture: {made.default_architecture}")
    _list_tasks(made)
    typer.echo(f"files: not found\n\n{made.where_to_get()}")


def _list_tasks(made: Any) -> None:
    """Print the tasks; many tasks that differ only in their names share a line."""
    from mtlkit.data.notes import listed

    groups: dict[str, list[str]] = {}
    for task in made.tasks:
        better = task.higher_is_better.get(task.main_metric, False)
        arrow = "higher is better" if better else "lower is better"
        count = "1 output" if task.outputs == 1 else f"{task.outputs} outputs"
        line = f"{task.kind}, {count}, loss {task.loss_name}, metric {task.main_metric} ({arrow})"
        groups.setdefault(line, []).append(task.name)
    typer.echo("tasks:")
    for line, names in groups.items():
        few = names if len(names) <= _FEW_TASKS else [listed(names)]
        for name in few:
            shown = textwrap.fill(
                f"{name}: {line}", page_width(), initial_indent="  ", subsequent_indent="      "
            )
            typer.echo(shown)


def _list_inputs(made: Any) -> None:
    """Print how each input column of a table is used."""
    from rich.console import Console
    from rich.table import Table

    columns = getattr(made, "input_table", None)
    if not columns:
        return
    table = Table("input", "used as", "missing", "distinct", "notes", box=None, header_style="bold")
    for column in columns:
        distinct = f"{column.distinct}" + (f" ({column.rare} rare)" if column.rare else "")
        table.add_row(column.name, column.taken, str(column.missing), distinct, column.note)
    console = Console(highlight=False, markup=False, width=max(page_width(), 80))
    console.print()
    console.print(table)
    console.print("missing and distinct are counted in the training rows", style="dim")
