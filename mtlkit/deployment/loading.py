"""From the folder of a run back to its network."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.architectures.saving import rebuild
from mtlkit.config.plugins import load_plugin
from mtlkit.errors import ConfigError, MtlkitError, SpecError
from mtlkit.tasks import Task
from mtlkit.training.checkpoints import CheckpointError, load_checkpoint
from mtlkit.training.record import RECORD, Record, draw_inputs, read_record, restore_task


class LoadedModel(nn.Module):
    """A trained network, with what its inputs and its predictions mean.

    ``forward(inputs)`` gives predictions by task, as the network itself does.

    Attributes:
        network: the architecture; for a single-task run, the module that computes that task.
        tasks: what is predicted; ``task.decode`` turns predictions into words and units.
        preprocessing: turns raw samples into inputs; None where the data set has no such thing.
        record: all that ``model.json`` says.
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
        """Predictions by task name."""
        predictions: dict[str, Tensor] = self.network(inputs)
        return predictions

    def predict(self, rows: Any, batch_size: int | None = None) -> Any:
        """A DataFrame of predictions in words and units for raw samples.

        Args:
            rows: a file that the preprocessing reads, a DataFrame of raw samples, a list of mappings, or
                a list of pictures' paths.
            batch_size: samples per pass through the network; None for what suits the input.
        """
        from mtlkit.deployment.predicting import predict_rows

        return predict_rows(self, rows, batch_size)

    def example(self, size: int = 2) -> Any:
        """A drawn batch of inputs, to try the network on; None if its inputs are not known."""
        drawn = None if self.preprocessing is None else self.preprocessing.example(size)
        return draw_inputs(self.record.get("input"), size) if drawn is None else drawn

    @property
    def example_input(self) -> Any:
        """Two samples, for :func:`mtlkit.fuse`."""
        return self.example(2)


def load(run: str | os.PathLike[str], device: str | torch.device = "cpu") -> LoadedModel:
    """The trained network of a run, with its best weights, in eval mode.

    The data set's files are not needed.

    Args:
        run: folder that ``mtlkit train`` wrote, or the folder of one run of a comparison that kept its
            weights; or a ``.safetensors`` file of ``mtlkit export``.
        device: where the network goes.

    Raises:
        MtlkitError: for a folder without a trained network; the message says what is missing.
    """
    path = Path(run)
    if path.suffix == ".safetensors":
        from mtlkit.deployment.exporting import load_exported

        return load_exported(path).to(device)
    record = _find_record(path)
    weights = path / record["weights"]
    if not weights.is_file():
        raise MtlkitError(_no_weights(path, record))
    if record["trained"] is None:
        warnings.warn(
            f"the run in {path} is not finished; these are its best weights so far", stacklevel=2
        )
    network = build(record)
    try:
        network.load_state_dict(load_checkpoint(weights)["model"])
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights in {weights} do not fit the network that {path / RECORD} describes: {error}"
        ) from None
    tasks = [restore_task(task) for task in record["tasks"] if task["name"] in record["predicts"]]
    loaded = LoadedModel(network, tasks, _preprocessing(path, record), record).eval()
    try:
        return loaded.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(f"the device {str(device)!r} cannot be used: {reason}") from None


def build(record: Record) -> nn.Module:
    """The network that a record describes, its weights drawn anew."""
    for plugin in record.get("plugins", ()):
        try:
            load_plugin(plugin)
        except ConfigError as error:  # it may have brought the data set only
            warnings.warn(f"{error}; what it registers is not known", stacklevel=3)
    outputs = {task["name"]: task["outputs"] for task in record["tasks"]}
    network = rebuild({**record, "tasks": outputs})
    if set(record["predicts"]) == set(outputs):
        return network
    from mtlkit.experiments.jobs import OneTask

    (task,) = record["predicts"]
    return OneTask(network, task)


def _find_record(path: Path) -> Record:
    from mtlkit.report.results import HEADER

    if not path.exists():
        raise MtlkitError(f"there is no folder {path}; give the output folder of `mtlkit train`")
    if (path / RECORD).is_file():
        return read_record(path / RECORD)
    if (path / HEADER).is_file():
        runs = sorted(found.parent for found in path.glob(f"runs/*/{RECORD}"))
        hint = f"; its first run is {runs[0]}" if runs else ""
        raise MtlkitError(f"{path} is a comparison; give the folder of one of its runs{hint}")
    if (path / "config.yaml").is_file():
        raise MtlkitError(
            f"the run in {path} has no {RECORD}: its network is not made from a config string, or an "
            "earlier mtlkit wrote it. Train again, or build the network in Python and give it the "
            f"weights of {path / 'checkpoints' / 'best.pt'}"
        )
    raise MtlkitError(f"{path} holds no run of mtlkit; give the output folder of `mtlkit train`")


def _no_weights(path: Path, record: Record) -> str:
    if (path / "job.json").is_file():
        return (
            f"the run in {path} belongs to a comparison that did not keep its weights; compare again "
            "with --keep-weights, or train this method with `mtlkit train`"
        )
    if record["trained"] is None:
        return (
            f"the run in {path} has no weights yet: it was stopped before its first validation; go on "
            f"with: mtlkit train --config {path / 'config.yaml'} --resume auto"
        )
    return f"the run in {path} has lost its weights: there is no {path / record['weights']}"


def _preprocessing(path: Path, record: Record) -> Any:
    if record["preprocessing"] is None:
        return None
    from mtlkit.data.preprocessing import read_preprocessing

    file = path / record["preprocessing"]
    try:
        return read_preprocessing(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MtlkitError(f"the run in {path} has lost its preprocessing: there is no {file}") from None
