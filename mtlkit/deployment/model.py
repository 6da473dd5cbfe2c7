"""A trained network with its preprocessing and its tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.architectures.saving import resolve
from mtlkit.data.base import DataError
from mtlkit.data.table.reading import Frame, import_pandas
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError, SpecError, UsageError
from mtlkit.tasks import Task
from mtlkit.training.record import Record, draw_inputs


class LoadedModel(nn.Module):
    """A trained network with its preprocessing and its tasks.

    ``forward(inputs)`` returns predictions by task, like the network.

    Attributes:
        network: the architecture; for a single-task run, the module that computes that task.
        tasks: the predicted tasks; ``task.decode`` turns predictions into class names and units.
        preprocessing: turns raw samples into inputs; None if the data set has none.
        record: the content of ``model.json``.

    >>> import mtlkit
    >>> model = mtlkit.load("runs/people")  # doctest: +SKIP
    >>> model.predict([{"age": 31, "job": "nurse"}])  # doctest: +SKIP
    """

    def __init__(
        self, network: nn.Module, tasks: Sequence[Task], preprocessing: Any, record: Record
    ) -> None:
        super().__init__()
        self.network = network
        self.tasks = tuple(tasks)
        self.preprocessing = preprocessing
        self.record = record

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return predictions by task name."""
        predictions: dict[str, Tensor] = self.network(inputs)
        return predictions

    def fix_preference(self, preference: Mapping[str, float] | None) -> None:
        """Fix the weights of a network with preferences at this one; None for its current preference.

        An ordinary network is unchanged, and accepts only None.
        """
        network: Any = self.network
        if preference is not None:
            self.check_preferences(preference)
            network.set_preference(preference)
        if getattr(network, "preferences", None) is not None:
            network.fold_preference()
            self.record = {**self.record, "architecture": resolve(network.spec)}

    def check_preferences(self, given: object) -> None:
        """Raise an error if the network was trained without preferences."""
        if getattr(self.network, "preferences", None) is None:
            raise UsageError(
                f"preference={given!r}: the network was trained without preferences, so there is "
                "nothing to choose; leave it out"
            )

    def predict(self, rows: Any, batch_size: int | None = None) -> Any:
        """Return a DataFrame of predictions for raw samples: class names, and values in their unit.

        Args:
            rows: a file that the preprocessing reads, a DataFrame of raw samples, a list of mappings, or
                a list of image paths.
            batch_size: samples per forward pass; None for the default of the preprocessing.
        """
        pandas = import_pandas()
        parts = [
            # a cell may be a map
            pandas.DataFrame({name: list(column) for name, column in columns.items()})
            for _, columns in self.decoded_batches(self.read_rows(rows), batch_size)
        ]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    def evaluate(self, rows: Any, batch_size: int | None = None) -> dict[str, dict[str, float]]:
        """Return the metrics of labeled raw samples by task, with the number of ``labels``.

        ``rmse`` of a regression is in the unit of the samples, also if the run standardized its targets.
        Tasks whose columns are missing are left out.

        Args:
            rows: as for :meth:`predict`, with the columns of the targets.
            batch_size: samples per forward pass; None for the default of the preprocessing.

        Raises:
            MtlkitError: for samples without labels, or if the preprocessing does not read labels.
        """
        frame = self.read_rows(rows)
        targets = self._labels(frame)
        tasks = [task for task in self.tasks if task.name in targets]
        metrics = {task.name: task.make_metrics() for task in tasks}
        done = 0
        for part, predictions in self.batches(frame, batch_size):
            for task in tasks:
                target = targets[task.name][done : done + len(part)]
                task.update(metrics[task.name], predictions[task.name], target)
            done += len(part)
        return {
            task.name: {
                **task.compute(metrics[task.name]),
                "labels": task.count_labels(targets[task.name]).number,
            }
            for task in tasks
        }

    def read_rows(self, rows: Any) -> Frame:
        """Return raw samples as a DataFrame; see :meth:`predict`."""
        preprocessing = self.checked_preprocessing()
        if isinstance(rows, str | os.PathLike):
            return preprocessing.read(rows)
        if isinstance(rows, list | tuple) and all(isinstance(row, str | os.PathLike) for row in rows):
            rows = {"file": [str(row) for row in rows]}
        pandas = import_pandas()
        return rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(rows)

    def batches(self, rows: Frame, batch_size: int | None) -> Iterator[tuple[Frame, dict[str, Tensor]]]:
        """Yield raw samples, batch by batch, with their predictions in float32 on the CPU."""
        if batch_size is not None and batch_size < 1:
            raise SpecError(f"the batch size must be 1 or more, not {batch_size}")
        preprocessing = self.checked_preprocessing()
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        size = batch_size or preprocessing.batch_size
        for start in range(0, len(rows), size):
            part = rows.iloc[start : start + size]
            leaves, structured = flatten_features(preprocessing.inputs(part))
            with torch.inference_mode():
                predictions = self(structured([leaf.to(device) for leaf in leaves]))
            yield part, {task.name: predictions[task.name].float().cpu() for task in self.tasks}

    def decoded_batches(
        self, rows: Frame, batch_size: int | None
    ) -> Iterator[tuple[Frame, dict[str, Any]]]:
        """Yield raw samples, batch by batch, with the columns of their predictions."""
        for part, predictions in self.batches(rows, batch_size):
            columns: dict[str, Any] = {}
            for task in self.tasks:
                columns |= task.decode(predictions[task.name])
            yield part, columns

    def checked_preprocessing(self) -> Any:
        """Return the preprocessing.

        Raises:
            MtlkitError: if the run has none.
        """
        if self.preprocessing is None:
            raise MtlkitError(
                "the data set of this run has no preprocessing that turns a file into inputs; call the "
                "network itself: mtlkit.load(run)(inputs)"
            )
        return self.preprocessing

    def example(self, size: int = 2) -> Any:
        """Return a random batch of inputs to test the network; None if its inputs are unknown."""
        drawn = None if self.preprocessing is None else self.preprocessing.example(size)
        return draw_inputs(self.record.get("input"), size) if drawn is None else drawn

    @property
    def example_input(self) -> Any:
        """Two samples, for :func:`mtlkit.fuse`."""
        return self.example(2)

    def _labels(self, frame: Frame) -> dict[str, Tensor]:
        """Return the targets of raw samples for the tasks whose columns exist."""
        preprocessing = self.checked_preprocessing()
        if not hasattr(preprocessing, "labels"):
            raise MtlkitError(
                f"the preprocessing {preprocessing.name!r} of this run does not read labels from files; "
                "compare the predictions of `mtlkit predict` with your labels instead"
            )
        columns = {task.name: list(task.columns) for task in self.tasks}
        present = [task for task in self.tasks if set(columns[task.name]) <= set(frame.columns)]
        if not present:
            wanted = sorted({column for names in columns.values() for column in names})
            raise DataError(
                f"the samples cannot be evaluated: they have none of the target columns "
                f"{', '.join(map(repr, wanted))}; given are: {', '.join(map(str, frame.columns))}"
            )
        absent = [name for names in columns.values() for name in names if name not in frame.columns]
        labels = preprocessing.labels(frame.assign(**dict.fromkeys(absent)))
        for task in present:
            _check_labels(task, labels[task.name], frame)
        return {task.name: labels[task.name] for task in present}


def _check_labels(task: Task, target: Tensor, frame: Frame) -> None:
    """Raise an error for cells of a target that are neither empty nor a label of the task."""
    filled = frame[list(task.columns)].notna().to_numpy()
    known = task.labels(target) if task.labels is not None else torch.isfinite(target)
    invalid = filled & ~known.reshape(filled.shape).numpy()
    if invalid.any():
        value = frame[list(task.columns)].to_numpy(object)[invalid][0]
        kind = f"the classes {', '.join(task.classes)}" if task.classes else "numbers"
        raise DataError(
            f"{int(invalid.sum())} cells of the target {task.name!r} are not valid labels, such as "
            f"{value!r}; the network predicts {kind}. Correct them, or leave them empty"
        )
