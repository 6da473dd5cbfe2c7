"""A trained network as one file for other programs: ``pt2``, ``onnx`` or ``safetensors``.

The network is fused first, so that rotations cost nothing, and the file is read back and compared with
the network before it gets its name.
"""

from __future__ import annotations

import copy
import json
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mtlkit.config.files import replacing, write_text
from mtlkit.deployment.formats import WRITERS, Predictor
from mtlkit.deployment.fusion import fuse
from mtlkit.deployment.loading import LoadedModel, build, load
from mtlkit.errors import MtlkitError, SpecError, unknown_name
from mtlkit.training.record import read_record, readable_json, restore_task

FORMATS = tuple(WRITERS)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: of the file.
        format: ``pt2``, ``onnx`` or ``safetensors``.
        difference: largest difference of the file's outputs to the network's, relative to the largest
            output.
        notes: what is worth knowing, such as rotations that could not be folded.
    """

    path: Path
    format: str
    difference: float
    notes: tuple[str, ...] = ()


def export(
    run: str | os.PathLike[str] | LoadedModel,
    output: str | os.PathLike[str] | None = None,
    *,
    format: str | None = None,
    batch: int | Literal["dynamic"] = "dynamic",
) -> Exported:
    """Write the network of a run as one file, rotations folded into the heads.

    ``pt2`` is read by ``torch.export.load``, ``onnx`` by ONNX Runtime and others; both have an output
    per task, raw as the network's: logits for classes. ``safetensors`` holds the weights of the fused
    network, which :func:`mtlkit.load` reads, with a JSON file that describes it. All three carry the
    record of the run and its preprocessing as metadata ``mtlkit``.

    Args:
        run: folder of a run, or what :func:`mtlkit.load` gave.
        output: the file; by default ``model.<format>`` in the run's folder.
        format: ``pt2``, ``onnx`` or ``safetensors``; None takes it from the name of ``output``.
        batch: samples that the file takes at a time: any number, or this one.

    Raises:
        MtlkitError: for a network that cannot be written like this, or whose outputs differ.
    """
    chosen = _choose_format(output, format)
    if output is None and isinstance(run, LoadedModel):
        raise SpecError("export of a loaded model needs the file to write: export(model, 'model.onnx')")
    if batch != "dynamic" and (not isinstance(batch, int) or batch < 1):
        raise SpecError(f"batch is 'dynamic' or a number of samples, 1 or more, not {batch!r}")
    path = Path(run, f"model.{chosen}") if output is None else Path(output)  # type: ignore[arg-type]
    loaded = copy.deepcopy(run).cpu().eval() if isinstance(run, LoadedModel) else load(run)
    size = 3 if batch == "dynamic" else batch
    example = loaded.example(size)
    if example is None:
        raise MtlkitError("the shape of the inputs is not known: the run's folder does not say it")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fused = fuse(loaded.network, loaded.example(max(size, 2)))
    notes = tuple(str(w.message) for w in caught if "explicit products" in str(w.message))
    with torch.no_grad(), replacing(path) as temporary:
        read = WRITERS[chosen](fused, example, temporary, loaded, batch == "dynamic")
        others = (loaded.example(number) for number in (1, 7) if batch == "dynamic")
        difference = _compare(loaded, read, [example, *others])
        if difference > TOLERANCE:
            raise MtlkitError(
                f"the outputs of the {chosen} file differ by {difference:.1e} from the network's, "
                "relative to the largest; nothing was written"
            )
    if chosen == "safetensors":
        write_text(_description_of(path), readable_json(loaded.record))
    return Exported(path, chosen, difference, notes)


def load_exported(path: Path) -> LoadedModel:
    """The network of a ``.safetensors`` file that :func:`export` wrote."""
    from safetensors.torch import load_file

    from mtlkit.data.preprocessing import read_preprocessing

    description = _description_of(path)
    for file in (path, description):
        if not file.is_file():
            raise MtlkitError(f"there is no file {file}; `mtlkit export --format safetensors` writes it")
    record = read_record(description)
    network = build(record)
    try:
        network.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise MtlkitError(f"{path} does not fit the network of {description}: {error}") from None
    saved = record["preprocessing"]
    preprocessing = None if saved is None else read_preprocessing(json.dumps(saved))
    tasks = [restore_task(task) for task in record["tasks"] if task["name"] in record["predicts"]]
    return LoadedModel(network, tasks, preprocessing, record).eval()


def _choose_format(output: str | os.PathLike[str] | None, given: str | None) -> str:
    suffix = "" if output is None else Path(output).suffix.removeprefix(".").lower()
    chosen = given or suffix
    if not chosen:
        raise SpecError(f"say the format: one of {', '.join(FORMATS)}")
    if chosen not in FORMATS:
        raise unknown_name("format", chosen, FORMATS)
    if output is not None and suffix != chosen:
        raise SpecError(f"the format is {chosen}, but the file is called {Path(output).name}")
    return chosen


def _description_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")  # model.json is the run's own


def _compare(loaded: LoadedModel, read: Predictor, examples: Iterable[Any]) -> float:
    """The largest difference to the network, relative to its largest output."""
    worst = 0.0
    for example in examples:
        wanted, found = loaded(example), read(example)
        if set(wanted) != set(found):
            raise MtlkitError(f"the file predicts {sorted(found)} instead of {sorted(wanted)}")
        for task, prediction in wanted.items():
            size = max(float(prediction.abs().max()), 1e-12)
            difference = float((prediction - found[task]).abs().max()) / size
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst
