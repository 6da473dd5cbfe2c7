"""``model.json``: a description of a run's network, to build it again without the data.

Weights and the preprocessing of the data set, if any, are in separate files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit._version import __version__
from mtlkit.architectures.saving import FORMAT, describe
from mtlkit.config.files import write_text
from mtlkit.config.registry import option_names
from mtlkit.config.spec import Part
from mtlkit.errors import SpecError, UsageError
from mtlkit.tasks import Task, create_task, list_tasks
from mtlkit.tasks.registry import kinds

RECORD = "model.json"
"""File that describes the network of a run."""
PREPROCESSING = "preprocessing.json"
"""File that describes how raw samples become inputs."""
WEIGHTS = "checkpoints/best.pt"

Record = dict[str, Any]


def describe_run(
    model: nn.Module, predicted: Sequence[Task], dataset: Any, plugins: Sequence[str] = ()
) -> Record | None:
    """Return a description to build a run's network again; None if no config string describes it.

    Args:
        model: the network, or a wrapper of the network ``model.architecture`` for some tasks.
        predicted: tasks that ``model`` predicts.
        dataset: data set of the run.
        plugins: files or modules that register parts of the network.
    """
    network: Any = getattr(model, "architecture", model)
    try:
        described = describe(network)
    except (SpecError, AttributeError):
        return None
    return {
        "format": FORMAT,
        "version": __version__,
        **described,
        "tasks": [describe_task(Task.of(task)) for task in dataset.tasks],
        "predicts": [task.name for task in predicted],
        "input": describe_inputs(_first_input(dataset)),
        "preprocessing": PREPROCESSING if getattr(dataset, "preprocessing", None) else None,
        "weights": WEIGHTS,
        "plugins": list(plugins),
        "trained": None,
    }


def write_record(folder: Path, record: Record | None, dataset: Any = None, **facts: Any) -> None:
    """Write ``model.json``, if there is a record, and the preprocessing of ``dataset``, if any."""
    preprocessing = getattr(dataset, "preprocessing", None)
    if preprocessing is not None:
        write_text(folder / PREPROCESSING, preprocessing.to_json())
    if record is not None:
        write_text(folder / RECORD, readable_json({**record, **facts}))


def readable_json(content: Any) -> str:
    """Return JSON with one line per entry, and lists of plain values on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    lists = re.compile(r"\[\n([^\[\]{}]*)\n\s*\]")
    return lists.sub(lambda found: "[" + re.sub(r"\n\s*", " ", found[1].strip()) + "]", text) + "\n"


def describe_task(task: Task) -> dict[str, Any]:
    """Return a task as plain values."""
    return {
        "name": task.name,
        "kind": task.spec or _spec_of(task),
        "outputs": task.outputs,
        "classes": list(task.classes),
        "columns": list(task.columns),
        "means": list(task.means),
        "deviations": list(task.deviations),
    }


def restore_task(described: Mapping[str, Any]) -> Task:
    """Create the task that :func:`describe_task` described.

    A task with a loss in Python only has its name, outputs and classes.
    """
    name = described["name"]
    try:
        task = create_task(described["kind"], name)
    except SpecError:
        task = Task(
            name,
            _unknown_loss,
            outputs=described["outputs"],
            kind=described["kind"],
            classes=described["classes"],
        )
    task.columns, task.means = described["columns"], described["means"]
    task.deviations = described["deviations"]
    return task


def describe_inputs(inputs: Any) -> Any:
    """Return shapes and types of the inputs of one sample, in their structure; None if unknown."""
    if isinstance(inputs, Tensor):
        return {"shape": list(inputs.shape), "dtype": str(inputs.dtype).removeprefix("torch.")}
    if isinstance(inputs, Mapping):
        return {"items": {str(key): describe_inputs(value) for key, value in inputs.items()}}
    if isinstance(inputs, list | tuple):
        return {"items": [describe_inputs(value) for value in inputs]}
    return None


def draw_inputs(described: Any, size: int) -> Any:
    """Return a random batch of such inputs, zeros for integers; None if unknown."""
    if described is None:
        return None
    items = described.get("items")
    if isinstance(items, Mapping):
        return {key: draw_inputs(item, size) for key, item in items.items()}
    if items is not None:
        return [draw_inputs(item, size) for item in items]
    shape, dtype = (size, *described["shape"]), getattr(torch, described["dtype"])
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _first_input(dataset: Any) -> Any:
    for split in ("val", "test", "train"):  # training samples may be augmented
        samples = getattr(dataset, split, None)
        if samples is not None and len(samples):
            return samples[0][0]
    return None


def _spec_of(task: Task) -> str:
    """Return the kind of a task that was created by its class, with the option for its size."""
    if task.kind not in list_tasks():
        return task.kind
    factory = kinds.get(task.kind)
    option = getattr(factory, "size_option", None)
    if option is None and "classes" in option_names(factory):
        option = "classes"
    options = {} if option is None else {option: list(task.classes) or task.outputs}
    return str(Part(task.kind, options))


def _unknown_loss(prediction: Tensor, target: Tensor) -> Tensor:
    raise UsageError("the loss of this task is Python code, which is not stored in the run's folder")
