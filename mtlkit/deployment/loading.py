"""Load the trained network of a run folder or of an exported file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mtlkit.architectures.base import SingleTask
from mtlkit.architectures.saving import rebuild
from mtlkit.config.plugins import load_plugin
from mtlkit.data.preprocessing import read_preprocessing
from mtlkit.deployment.model import LoadedModel
from mtlkit.errors import ConfigError, MtlkitError, SpecError
from mtlkit.report.results import HEADER
from mtlkit.training.checkpoints import CheckpointError, load_checkpoint
from mtlkit.training.record import RECORD, Record, read_record, restore_task


def load(
    run: str | os.PathLike[str], device: str | torch.device = "cpu", *, trust_plugins: bool = False
) -> LoadedModel:
    """Load the trained network of a run, with its best weights, in eval mode.

    The files of the data set are not needed. No code of the folder runs: weights are loaded as tensors
    only, and a plugin of the run is imported only if you trust it.

    Args:
        run: output folder of ``mtlkit train``, the folder of one run of a comparison that kept its
            weights, or a ``.safetensors`` file of ``mtlkit export``.
        device: device of the network.
        trust_plugins: import the Python files and modules that the folder names as plugins. Keep it
            False for folders from others; you can also import the plugins before.

    Raises:
        MtlkitError: for a folder without a trained network, or one that needs an untrusted plugin.

    >>> import mtlkit
    >>> mtlkit.load("runs/people").tasks[0].name  # doctest: +SKIP
    'income'
    """
    path = Path(run)
    is_file = path.suffix == ".safetensors"
    record = _read_description(path) if is_file else _find_record(path)
    _import_plugins(record, str(path), trusted=trust_plugins)
    network, preprocessing = (_read_exported if is_file else _read_run)(path, record)
    tasks = [restore_task(task) for task in record["tasks"] if task["name"] in record["predicts"]]
    loaded = LoadedModel(network, tasks, preprocessing, record).eval()
    try:
        return loaded.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(f"the device {str(device)!r} cannot be used: {reason}") from None


def build(record: Record) -> nn.Module:
    """Make the network that a record describes, with new random weights."""
    outputs = {task["name"]: task["outputs"] for task in record["tasks"]}
    network: nn.Module = rebuild({**record, "tasks": outputs})
    if set(record["predicts"]) == set(outputs):
        return network
    (task,) = record["predicts"]
    return SingleTask(network, task, named=True)


def description_of(path: Path) -> Path:
    """Return the file that describes the network of an exported ``.safetensors`` file."""
    return path.with_name(f"{path.name}.json")  # model.json is the run's own


def _import_plugins(record: Record, source: str, *, trusted: bool) -> None:
    """Import the plugins of a record if they are trusted; else require that they are imported."""
    absent = [plugin for plugin in map(str, record.get("plugins", ())) if not _is_imported(plugin)]
    if absent and not trusted:
        flags = " ".join(f"--plugin {plugin}" for plugin in absent)
        raise MtlkitError(
            f"{source} was trained with {', '.join(absent)}, which is Python code and is not run "
            f"automatically. If you trust it, add {flags} on the command line; in Python pass "
            "trust_plugins=True, or import it before"
        )
    for plugin in absent:
        try:
            load_plugin(plugin)
        except ConfigError as error:  # it may register only the data set, which is not needed
            warnings.warn(f"{error}; what it registers is unknown", stacklevel=3)


def _is_imported(plugin: str) -> bool:
    """Return whether a plugin is imported; a file is imported by its stem, from any folder."""
    return (Path(plugin).stem if plugin.endswith(".py") else plugin) in sys.modules


def _read_run(path: Path, record: Record) -> tuple[nn.Module, Any]:
    weights = path / record["weights"]
    if not weights.is_file():
        raise MtlkitError(_no_weights(path, record))
    if record["trained"] is None:
        warnings.warn(
            f"the run in {path} is not finished; these are its best weights so far", stacklevel=3
        )
    network = build(record)
    try:
        network.load_state_dict(load_checkpoint(weights)["model"])
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights in {weights} do not fit the network that {path / RECORD} describes: {error}"
        ) from None
    if record["preprocessing"] is None:
        return network, None
    file = path / record["preprocessing"]
    try:
        return network, read_preprocessing(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MtlkitError(f"the run in {path} has lost its preprocessing: there is no {file}") from None


def _read_description(path: Path) -> Record:
    description = description_of(path)
    for file in (path, description):
        if not file.is_file():
            raise MtlkitError(f"there is no file {file}; `mtlkit export --format safetensors` writes it")
    return read_record(description)


def _read_exported(path: Path, record: Record) -> tuple[nn.Module, Any]:
    from safetensors.torch import load_file

    network = build(record)
    try:
        network.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise MtlkitError(
            f"{path} does not fit the network of {description_of(path)}: {error}"
        ) from None
    saved = record["preprocessing"]
    return network, None if saved is None else read_preprocessing(json.dumps(saved))


def _find_record(path: Path) -> Record:
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
            f"the run in {path} has no {RECORD}: its network was not made from a config string, or the "
            "run is from an older version. Train again, or build the network in Python and load the "
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
            f"the run in {path} has no weights yet: it was stopped before its first validation; resume "
            f"it with: mtlkit train --config {path / 'config.yaml'} --resume auto"
        )
    return f"the run in {path} has lost its weights: there is no {path / record['weights']}"
