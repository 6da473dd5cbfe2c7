"""The formats of exported networks: write each, and read it back."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.architectures.preference import Preference
from mtlkit.config.extras import import_extra
from mtlkit.deployment.loading import build
from mtlkit.deployment.model import LoadedModel
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError
from mtlkit.training.record import Record

METADATA = "mtlkit"
"""Key of the metadata that describe the network of a file: tasks, classes, units, preprocessing."""
_ROTATION = "method.rotation_"

Predictor = Callable[..., Mapping[str, Tensor]]
"""A function from inputs, and a preference (K,) where the file takes one, to predictions by task."""
Write = Callable[[nn.Module, Any, Path, LoadedModel, bool], Predictor]


def _write_pt2(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Predictor:
    with _explained("pt2"):
        program = _program(fused, example, loaded, dynamic)
    extra = {METADATA: json.dumps(describe_export(loaded))}
    with open(path, "wb") as file:  # given a name, torch would require the suffix
        torch.export.save(program, file, extra_files=extra)
    with open(path, "rb") as file:
        read: Any = torch.export.load(file).module()
    return lambda *inputs: read(*inputs)


def _write_onnx(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Predictor:
    onnx = import_extra("onnx", "export to ONNX")
    import_extra("onnxscript", "export to ONNX")
    names = [task.name for task in loaded.tasks]
    # inputs and outputs need different names, and inputs by task are named like the tasks
    given = _input_names(example)
    given += ["preference"] if isinstance(fused, PreferenceInput) else []
    inputs = [f"input_{name}" if name in names else name for name in given]
    with _explained("onnx"), _quiet_onnx():
        # a program, because for a module this would treat a dict as keyword arguments
        written: Any = torch.onnx.export(
            _program(fused, example, loaded, dynamic),
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=names,
        )
    model = written.model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(describe_export(loaded))})
    onnx.save_model(model, str(path))
    return _onnx_reader(path, inputs)


def _onnx_reader(path: Path, names: list[str]) -> Predictor:
    """Return a reader that uses ONNX Runtime, or if it is not installed, onnx's reference."""
    session: Any
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
        outputs = list(session.output_names)

    def run(*inputs: Any) -> Mapping[str, Tensor]:
        leaves = [leaf.numpy() for leaf in flatten_features(inputs)[0]]
        found = session.run(None, dict(zip(names, leaves, strict=True)))
        return {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}

    return run


def _write_safetensors(
    fused: nn.Module, example: Any, path: Path, loaded: LoadedModel, dynamic: bool
) -> Predictor:
    from safetensors.torch import load_file, save_file

    record = {**describe_export(loaded), "method": "sum"}
    network: Any = build(record)
    plain = {k: v for k, v in network.state_dict().items() if k.startswith("method.")}  # names of tasks
    weights = {**plain, **fused.state_dict()}
    if any(_ROTATION in key for key in weights) or not weights.keys() >= network.state_dict().keys():
        # rotations that were not folded belong to the method
        record = describe_export(loaded)
        network, weights = build(record), loaded.network.state_dict()
    kept = {key: weights[key].clone().contiguous() for key in network.state_dict()}
    save_file(kept, str(path), metadata={METADATA: json.dumps(record)})
    network.load_state_dict(load_file(path))
    loaded.record = record
    written: Any = network.eval()

    def run(inputs: Any, preference: Tensor | None = None) -> Mapping[str, Tensor]:
        if preference is not None:
            written.set_preference(dict(zip(written.tasks, preference.tolist(), strict=True)))
        found: Mapping[str, Tensor] = written(inputs)
        return found

    return run


WRITERS: dict[str, Write] = {"pt2": _write_pt2, "onnx": _write_onnx, "safetensors": _write_safetensors}


class PreferenceInput(nn.Module):
    """A fused network that takes the preference as a second input (K,), divided by its sum."""

    def __init__(self, network: nn.Module, preferences: Preference) -> None:
        super().__init__()
        self.network, self.preferences = network, preferences

    def forward(self, inputs: Any, preference: Tensor) -> Any:
        """Return the predictions at the preference."""
        before = self.preferences.chosen
        self.preferences.chosen = preference / preference.sum()
        try:
            return self.network(inputs)
        finally:
            self.preferences.chosen = before


def describe_export(loaded: LoadedModel) -> Record:
    """Return the metadata of a file: the record of the run, with its preprocessing inside."""
    chosen = loaded.preprocessing
    return {
        **loaded.record,
        "weights": None,
        "preprocessing": None if chosen is None else json.loads(chosen.to_json()),
    }


def _program(fused: nn.Module, example: Any, loaded: LoadedModel, dynamic: bool) -> Any:
    inputs: tuple[Any, ...] = (example,)
    axes = _batch_axis(loaded.network, example, dynamic)
    if isinstance(fused, PreferenceInput):
        inputs, axes = (example, fused.preferences.chosen), axes and (*axes, None)
    return torch.export.export(fused, inputs, dynamic_shapes=axes)


def _batch_axis(network: nn.Module, example: Any, dynamic: bool) -> Any:
    """Mark the first axis of every input as dynamic; None keeps the example's size."""
    if not dynamic:
        return None

    def mark(given: Any, axis: Any) -> Any:
        if isinstance(given, Mapping):
            return {key: mark(item, axis) for key, item in given.items()}
        if isinstance(given, list | tuple):
            return type(given)(mark(item, axis) for item in given)
        return {0: axis}

    if getattr(network, "multi_input", False):  # each task has its own batch
        axes = {task: torch.export.Dim(f"batch_{index}") for index, task in enumerate(example)}
        return ({task: mark(inputs, axes[task]) for task, inputs in example.items()},)
    return (mark(example, torch.export.Dim("batch")),)


def _input_names(example: Any) -> list[str]:
    if isinstance(example, Tensor):
        return ["inputs"]
    if isinstance(example, Mapping) and all(isinstance(item, Tensor) for item in example.values()):
        return [str(key) for key in example]
    return [f"inputs_{index}" for index in range(len(flatten_features(example)[0]))]


@contextmanager
def _explained(format: str) -> Iterator[None]:
    """Raise a short error if torch cannot write this network."""
    try:
        yield
    except Exception as error:  # torch raises many kinds of errors, with long messages
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MtlkitError(
            f"torch cannot write this network as {format}: {reason.strip()}. If the batch size cannot "
            "vary, fix it: --batch 1; safetensors works for any network"
        ) from error


@contextmanager
def _quiet_onnx() -> Iterator[None]:
    """Silence the messages of the exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
