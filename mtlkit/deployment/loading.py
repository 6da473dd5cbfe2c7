"""Load the trained network of a run folder or of an exported file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from mtlkit.architectures.base import SingleTask
from mtlkit.architectures.saving import check_format, rebuild
from mtlkit.config.plugins import load_plugin
from mtlkit.data.preprocessing import read_preprocessing
from mtlkit.deployment.model import LoadedModel
from mtlkit.errors import ConfigError, MtlkitError, SpecError
from mtlkit.report.results import HEADER
from mtlkit.training.checkpoints import CheckpointError, load_checkpoint
from mtlkit.training.record import RECORD, Record, restore_task


class _WrittenTask(BaseModel, strict=True):
    """A task in a record."""

    name: str
    kind: str
    outputs: int
    classes: list[str]
    columns: list[str]
    means: list[float]
    deviations: list[float]


class _Written(BaseModel, strict=True):
    """The entries of a record that a network is made from; others are allowed."""

    architecture: str
    method: str
    tasks: list[_WrittenTask]
    predicts: list[str]
    weights: str | None
    preprocessing: str | dict[str, Any] | None
    trained: dict[str, Any] | None
    plugins: list[str] = []


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
    network = (_read_exported if is_file else _read_run)(path, record)
    preprocessing = _read_preprocessing(path.parent if is_file else path, record["preprocessing"])
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


def _read_run(path: Path, record: Record) -> nn.Module:
    weights = path / str(record["weights"])
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
    return network


def _read_preprocessing(folder: Path, saved: Any) -> Any:
    """Read a preprocessing: ``saved`` is its content, the name of its file, or None."""
    if saved is None:
        return None
    if isinstance(saved, dict):
        return read_preprocessing(json.dumps(saved))
    try:
        text = (folder / saved).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise MtlkitError(f"the run in {folder} has lost its preprocessing: {error}") from None
    return read_preprocessing(text)


def _read_description(path: Path) -> Record:
    description = description_of(path)
    for file in (path, description):
        if not file.is_file():
            raise MtlkitError(f"there is no file {file}; `mtlkit export --format safetensors` writes it")
    return _checked_record(description)


def _checked_record(path: Path) -> Record:
    """Read a record and check the types of its entries, because anybody may have written the file."""
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        check_format(record, str(path))
        _Written.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        entry = ".".join(map(str, first["loc"]))
        raise MtlkitError(f"{path} is damaged: {entry}: {first['msg']}; train again") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MtlkitError(f"{path} does not describe a network of mtlkit: {error!r}") from None
    names, predicts = {task["name"] for task in record["tasks"]}, set(record["predicts"])
    if predicts != names and not (len(predicts) == 1 and predicts < names):
        raise MtlkitError(
            f"{path} is damaged: it predicts {sorted(predicts)}, which is neither all of its tasks nor "
            f"one of them: {sorted(names)}; train again"
        )
    return record


def _read_exported(path: Path, record: Record) -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    network = build(record)
    try:
        network.load_state_dict(load_file(path))
    except SafetensorError as error:
        raise MtlkitError(f"{path} is damaged: {error}; export the network again") from None
    except RuntimeError as error:
        raise MtlkitError(
            f"{path} does not fit the network of {description_of(path)}: {error}"
        ) from None
    return network


def _find_record(path: Path) -> Record:
    if not path.exists():
        raise MtlkitError(f"there is no folder {path}; give the output folder of `mtlkit train`")
    if (path / RECORD).is_file():
        return _checked_record(path / RECORD)
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
    return f"the run in {path} has lost its weights: there is no {path / str(record['weights'])}"
