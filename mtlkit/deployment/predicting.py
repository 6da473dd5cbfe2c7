"""Predictions for new samples: from raw rows or pictures to a table of words and numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtlkit.config.files import replacing
from mtlkit.data.table.reading import Frame, import_pandas
from mtlkit.deployment.loading import LoadedModel, load
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError, SpecError, unknown_name

KEEP_ALL = "all"
_CSV, _GZIP = ".csv", ".gz"
_DIGITS = {4: 7, 8: 10}  # by the bytes of a float


def predict(
    run: str | os.PathLike[str] | LoadedModel,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    device: str = "cpu",
    report: Callable[[int, int], None] | None = None,
) -> int:
    """Predict on the raw samples of a file, and write a table with a row per sample, in their order.

    The columns of each task are those of :meth:`mtlkit.Task.decode`: the class and its probabilities, or
    values in the unit of the targets. Maps are written as ``.npy`` files into a folder beside the table,
    which then holds their names.

    Args:
        run: folder of a run, or what :func:`mtlkit.load` gave.
        input: what the run's preprocessing reads; for a table, a CSV or Parquet file.
        output: the table, ``.csv`` or ``.csv.gz``; it gets its name when it is whole.
        keep: columns of the input to copy, or ``["all"]``.
        batch_size: samples per pass through the network; None for what suits the kind of input.
        device: of the network.
        report: is told the number of samples that are done, and of all.

    Returns:
        The number of samples.
    """
    target = Path(output)
    if not target.name.removesuffix(_GZIP).endswith(_CSV):
        raise SpecError(f"predictions are written as .csv or .csv.gz, not {target.name!r}")
    if batch_size is not None and batch_size < 1:
        raise SpecError(f"the batch size must be 1 or more, not {batch_size}")
    loaded = run if isinstance(run, LoadedModel) else load(run, device)
    rows = preprocessing_of(loaded).read(input)
    copied = _columns_to_copy(rows, keep or loaded.preprocessing.identity, str(input))
    done = 0
    with replacing(target) as temporary:
        for part, columns in decoded_batches(loaded, rows, batch_size):
            columns = {name: _as_cells(column, name, done, target) for name, column in columns.items()}
            given = {f"{n}_given" if n in columns else n: part[n].to_numpy(object) for n in copied}
            import_pandas().DataFrame({**given, **columns}).to_csv(
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


def decoded_batches(
    loaded: LoadedModel, rows: Frame, batch_size: int | None
) -> Iterator[tuple[Frame, dict[str, Any]]]:
    """Raw samples, batch by batch, with the columns of their predictions."""
    preprocessing = preprocessing_of(loaded)
    device = next((parameter.device for parameter in loaded.parameters()), torch.device("cpu"))
    size = batch_size or preprocessing.batch_size
    for start in range(0, len(rows), size):
        part = rows.iloc[start : start + size]
        leaves, structured = flatten_features(preprocessing.inputs(part))
        with torch.inference_mode():
            predictions = loaded(structured([leaf.to(device) for leaf in leaves]))
        columns: dict[str, Any] = {}
        for task in loaded.tasks:
            columns |= task.decode(predictions[task.name].float().cpu())
        yield part, columns


def predict_rows(loaded: LoadedModel, rows: Any, batch_size: int | None = None) -> Frame:
    """Predictions for raw samples: a file, a DataFrame, a list of mappings, or paths of pictures."""
    pandas = import_pandas()
    if isinstance(rows, str | os.PathLike):
        rows = preprocessing_of(loaded).read(rows)
    elif isinstance(rows, list | tuple) and all(isinstance(row, str | os.PathLike) for row in rows):
        rows = {"file": [str(row) for row in rows]}
    frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(rows)
    parts = [
        pandas.DataFrame({name: list(column) for name, column in columns.items()})  # a cell may be a map
        for _, columns in decoded_batches(loaded, frame, batch_size)
    ]
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()


def preprocessing_of(loaded: LoadedModel) -> Any:
    """How raw samples become inputs.

    Raises:
        MtlkitError: where that is not known.
    """
    if loaded.preprocessing is None:
        raise MtlkitError(
            "the data set of this run has no preprocessing, so it is not known how a file becomes "
            "inputs; call the network itself: mtlkit.load(run)(inputs)"
        )
    return loaded.preprocessing


def _columns_to_copy(rows: Frame, keep: Sequence[str], source: str) -> list[str]:
    if list(keep) == [KEEP_ALL]:
        return list(rows.columns)
    for name in keep:
        if name not in rows.columns:
            raise unknown_name(f"column of {source}", name, map(str, rows.columns))
    return list(keep)


def _as_cells(column: Any, name: str, first: int, table: Path) -> Any:
    """What the table holds of a column of predictions whose first row is ``first``."""
    values = np.asarray(column)
    if values.dtype.kind == "f" and values.ndim == 1:
        return [float(f"{value:.{_DIGITS[value.itemsize]}g}") for value in values]
    if values.ndim == 1:
        return values
    folder = table.with_name(table.name.removesuffix(_GZIP).removesuffix(_CSV) + "_maps")
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for row, picture in enumerate(values, start=first):
        path = folder / f"{name}_{row:06d}.npy"
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, picture)
        cells.append(f"{folder.name}/{path.name}")
    return cells
