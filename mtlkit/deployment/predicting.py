"""Predict new samples: from raw rows or images to a table of class names and numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit.config.files import replacing
from mtlkit.data.table.reading import Frame, import_pandas
from mtlkit.deployment.loading import load
from mtlkit.deployment.model import LoadedModel
from mtlkit.errors import SpecError, unknown_name

KEEP_ALL = "all"
_CSV, _GZIP = ".csv", ".gz"
_DIGITS = {4: 7, 8: 10}  # by the bytes of a float
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def predict(
    run: str | os.PathLike[str] | LoadedModel,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    device: str = "cpu",
    report: Callable[[int, int], None] | None = None,
    trust_plugins: bool = False,
) -> int:
    """Predict the raw samples of a file, and write a table with a row per sample, in the same order.

    The columns of each task are those of :meth:`mtlkit.Task.decode`: the class and its probabilities, or
    values in the unit of the targets. Maps are written as ``.npy`` files into a folder beside the table,
    which has their names. Text that a spreadsheet would run as a formula (``=``, ``+``, ``-`` or ``@``
    first, and not a number) is written with an apostrophe before it.

    Args:
        run: folder of a run, or a model of :func:`mtlkit.load`.
        input: a file that the run's preprocessing reads; for a table, a CSV or Parquet file.
        output: the table, ``.csv`` or ``.csv.gz``; an existing file is replaced at the end.
        keep: columns of the input to copy, or ``["all"]``.
        batch_size: samples per forward pass; None for the default of the preprocessing.
        device: device of the network.
        report: called with the number of finished samples, and of all samples.
        trust_plugins: as for :func:`mtlkit.load`.

    Returns:
        The number of samples.

    >>> from mtlkit.deployment.predicting import predict
    >>> predict("runs/people", "new.csv", "predictions.csv", keep=["name"])  # doctest: +SKIP
    250
    """
    target = Path(output)
    if not target.name.removesuffix(_GZIP).endswith(_CSV):
        raise SpecError(f"predictions are written as .csv or .csv.gz, not {target.name!r}")
    loaded = run if isinstance(run, LoadedModel) else load(run, device, trust_plugins=trust_plugins)
    rows = loaded.checked_preprocessing().read(input)
    copied = _columns_to_copy(rows, keep or loaded.preprocessing.identity, str(input))
    done = 0
    with replacing(target) as temporary:
        for part, columns in loaded.decoded_batches(rows, batch_size):
            columns = {name: _as_cells(column, name, done, target) for name, column in columns.items()}
            given = {f"{n}_given" if n in columns else n: part[n].to_numpy(object) for n in copied}
            cells = {_escaped(n): list(map(_escaped, c)) for n, c in {**given, **columns}.items()}
            import_pandas().DataFrame(cells).to_csv(
                temporary,
                mode="a",
                header=done == 0,
                index=False,
                compression="gzip" if target.name.endswith(_GZIP) else None,
            )
            done += len(part)
            if report is not None:
                report(done, len(rows))
    return done


def _escaped(cell: Any) -> Any:
    """Return a cell, with an apostrophe before text that a spreadsheet would run as a formula."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _columns_to_copy(rows: Frame, keep: Sequence[str], source: str) -> list[str]:
    if list(keep) == [KEEP_ALL]:
        return list(rows.columns)
    for name in keep:
        if name not in rows.columns:
            raise unknown_name(f"column of {source}", name, map(str, rows.columns))
    return list(keep)


def _as_cells(column: Any, name: str, first: int, table: Path) -> Any:
    """Return the cells of a column of predictions, whose first row is number ``first``."""
    values = np.asarray(column)
    if values.dtype.kind == "f" and values.ndim == 1:
        return [float(f"{value:.{_DIGITS[value.itemsize]}g}") for value in values]
    if values.ndim == 1:
        return values
    folder = table.with_name(table.name.removesuffix(_GZIP).removesuffix(_CSV) + "_maps")
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for row, image in enumerate(values, start=first):
        path = folder / f"{name}_{row:06d}.npy"
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, image)
        cells.append(f"{folder.name}/{path.name}")
    return cells
