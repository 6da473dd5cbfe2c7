"""A trained network as one file for other programs: ``pt2``, ``onnx`` or ``safetensors``.

The network is fused first, so that rotations cost nothing, and the file is read back and compared with
the network before it gets its name.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.deployment.loading import LoadedModel, build, load
from mtlkit.deployment.record import Record, read_record, readable_json, restore_task
from mtlkit.errors import MissingExtraError, MtlkitError, SpecError, unknown_name
from mtlkit.files import replacing, write_text
from mtlkit.fusion import fuse
from mtlkit.nesting import flatten_features

__all__ = ["FORMATS", "Exported", "export", "load_exported"]

METADATA = "mtlkit"
"""Key under which a file says what its network is: tasks, classes, units, preprocessing."""
TOLERANCE = 1e-4
_ROTATION = "method.rotation_"


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
        read = _FORMATS[chosen](fused, example, temporary, loaded, batch == "dynamic")
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


Write = Callable[[nn.Module, Any, Path, LoadedModel, bool], Callable[[Any], Mapping[str, Tensor]]]


def _write_pt2(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Callable[[Any], Mapping[str, Tensor]]:
    with _explained("pt2"):
        axes = _batch_axis(loaded.network, example, dynamic)
        program = torch.export.export(fused, (example,), dynamic_shapes=axes)
    extra = {METADATA: json.dumps(describe_export(loaded))}
    with open(path, "wb") as file:  # by its name, torch would want the suffix
        torch.export.save(program, file, extra_files=extra)
    with open(path, "rb") as file:
        read: Any = torch.export.load(file).module()
    return lambda inputs: read(inputs)


def _write_onnx(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Callable[[Any], Mapping[str, Tensor]]:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("onnx", "export", "export to ONNX") from None
    names = [task.name for task in loaded.tasks]
    inputs = _input_names(example)
    with _explained("onnx"), _quiet_onnx():
        program: Any = torch.onnx.export(
            fused,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=names,
            dynamic_shapes=_batch_axis(loaded.network, example, dynamic),
        )
    model = program.model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(describe_export(loaded))})
    onnx.save_model(model, str(path))
    return _onnx_reader(path, inputs)


def _onnx_reader(path: Path, names: list[str]) -> Callable[[Any], Mapping[str, Tensor]]:
    """ONNX Runtime where it is installed, else the reference of the package onnx."""
    session: Any
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
        outputs = list(session.output_names)

    def run(inputs: Any) -> Mapping[str, Tensor]:
        leaves = [leaf.numpy() for leaf in flatten_features(inputs)[0]]
        found = session.run(None, dict(zip(names, leaves, strict=True)))
        return {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}

    return run


def _write_safetensors(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Callable[[Any], Mapping[str, Tensor]]:
    from safetensors.torch import load_file, save_file

    record = {**describe_export(loaded), "method": "sum"}
    network, weights = build(record), fused.state_dict()
    if any(_ROTATION in key for key in weights) or not weights.keys() >= network.state_dict().keys():
        # rotations that no head took up are part of the method
        record = describe_export(loaded)
        network, weights = build(record), loaded.network.state_dict()
    kept = {key: weights[key].clone().contiguous() for key in network.state_dict()}
    save_file(kept, str(path), metadata={METADATA: json.dumps(record)})
    network.load_state_dict(load_file(path))
    loaded.record = record
    return network.eval()


_FORMATS: dict[str, Write] = {
    "pt2": _write_pt2,
    "onnx": _write_onnx,
    "safetensors": _write_safetensors,
}
FORMATS = tuple(_FORMATS)


def describe_export(loaded: LoadedModel) -> Record:
    """What the file says about itself: the record of the run, with its preprocessing inside."""
    chosen = loaded.preprocessing
    return {
        **loaded.record,
        "weights": None,
        "preprocessing": None if chosen is None else json.loads(chosen.to_json()),
    }


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


def _batch_axis(network: nn.Module, example: Any, dynamic: bool) -> Any:
    """For every input, that the first axis may have any length; None for the example's own."""
    if not dynamic:
        return None

    def mark(given: Any, axis: Any) -> Any:
        if isinstance(given, Mapping):
            return {key: mark(item, axis) for key, item in given.items()}
        if isinstance(given, list | tuple):
            return type(given)(mark(item, axis) for item in given)
        return {0: axis}

    if getattr(network, "multi_input", False):  # a batch of each task's own
        axes = {task: torch.export.Dim(f"batch_{index}") for index, task in enumerate(example)}
        return ({task: mark(inputs, axes[task]) for task, inputs in example.items()},)
    return (mark(example, torch.export.Dim("batch")),)


def _input_names(example: Any) -> list[str]:
    if isinstance(example, Tensor):
        return ["inputs"]
    if isinstance(example, Mapping) and all(isinstance(item, Tensor) for item in example.values()):
        return [str(key) for key in example]
    return [f"inputs_{index}" for index in range(len(flatten_features(example)[0]))]


def _compare(
    loaded: LoadedModel, read: Callable[[Any], Mapping[str, Tensor]], examples: Iterable[Any]
) -> float:
    """The largest difference to the network, relative to its largest output."""
    worst = 0.0
    for example in examples:
        wanted, found = loaded(example), read(example)
        if set(wanted) != set(found):
            raise MtlkitError(f"the file predicts {sorted(found)} instead of {sorted(wanted)}")
        for task, prediction in wanted.items():
            size = max(float(prediction.abs().max()), 1e-12)
            worst = max(worst, float((prediction - found[task]).abs().max()) / size)
    return worst


@contextmanager
def _explained(format: str) -> Iterator[None]:
    """Say in a sentence that torch cannot write this network."""
    try:
        yield
    except Exception as error:  # torch raises many kinds, with a page of text
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MtlkitError(
            f"torch cannot write this network as {format}: {reason.strip()}. If it is the size of the "
            "batch that cannot vary, give a number: --batch 1; safetensors takes any network"
        ) from error


@contextmanager
def _quiet_onnx() -> Iterator[None]:
    """Without the exporter's remarks about its own parts."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
