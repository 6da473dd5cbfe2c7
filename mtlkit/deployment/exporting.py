"""Export a trained network as one file: ``pt2``, ``onnx`` or ``safetensors``.

The network is fused first, so that rotations cost nothing. The file is read back and compared with the
network before it replaces an older one.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mtlkit.architectures.preference import preference_of
from mtlkit.config.files import replacing, write_text
from mtlkit.deployment.formats import WRITERS, Predictor, PreferenceInput
from mtlkit.deployment.fusion import fuse
from mtlkit.deployment.loading import description_of, load
from mtlkit.deployment.model import LoadedModel
from mtlkit.errors import MtlkitError, SpecError, unknown_name
from mtlkit.training.record import readable_json

FORMATS = tuple(WRITERS)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """The result of :func:`export`.

    Attributes:
        path: the file.
        format: ``pt2``, ``onnx`` or ``safetensors``.
        difference: largest difference between the file's outputs and the network's, relative to the
            largest output.
        notes: remarks, such as rotations that could not be folded.
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
    preference: Mapping[str, float] | Literal["input"] | None = None,
    trust_plugins: bool = False,
) -> Exported:
    """Write the network of a run as one file, with rotations folded into the heads.

    ``pt2`` is read by ``torch.export.load``, ``onnx`` by ONNX Runtime and others; both have an output
    per task, the same as the network's: logits for classes. ``safetensors`` has the weights of the fused
    network, and a JSON file describes it; :func:`mtlkit.load` reads both. All three have the record of
    the run and its preprocessing as metadata ``mtlkit``.

    Args:
        run: folder of a run, or a model of :func:`mtlkit.load`.
        output: the file; by default ``model.<format>`` in the run's folder.
        format: ``pt2``, ``onnx`` or ``safetensors``; None takes it from the name of ``output``.
        batch: the batch size that the file accepts; ``"dynamic"`` for any.
        preference: how much each task counts, for a network that was trained with preferences; the file
            has the weights for it. None for the preference of the network. With ``"input"`` it is chosen
            later: ``pt2`` and ``onnx`` take K numbers of zero or more as a second input, in the order of
            the network's tasks; ``safetensors`` keeps the network's preferences.
        trust_plugins: as for :func:`mtlkit.load`.

    Raises:
        MtlkitError: for a network that cannot be written in this format, or whose outputs differ.

    >>> import mtlkit
    >>> mtlkit.export("runs/people", "people.onnx").difference < 1e-4  # doctest: +SKIP
    True
    """
    chosen = _choose_format(output, format)
    if output is None and isinstance(run, LoadedModel):
        raise SpecError("a loaded model needs the file to write: export(model, 'model.onnx')")
    if batch != "dynamic" and (not isinstance(batch, int) or batch < 1):
        raise SpecError(f"batch is 'dynamic' or a number of samples, 1 or more, not {batch!r}")
    path = Path(run, f"model.{chosen}") if output is None else Path(output)  # type: ignore[arg-type]
    if isinstance(run, LoadedModel):
        loaded = copy.deepcopy(run).cpu().eval()
    else:
        loaded = load(run, trust_plugins=trust_plugins)
    if isinstance(preference, str):
        if preference != "input":
            raise SpecError(f"preference is a number by task, or 'input', not {preference!r}")
        loaded.check_preferences(preference)
    else:
        loaded.fix_preference(preference)
    size = 3 if batch == "dynamic" else batch
    example = loaded.example(size)
    if example is None:
        raise MtlkitError("the shape of the inputs is unknown: the record of the run does not have it")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fused = fuse(loaded.network, loaded.example(max(size, 2)))
    chooses = preference_of(fused)  # None where the weights are at a fixed preference
    tries: Sequence[Tensor | None] = [None] if chooses is None else _corners(len(chooses.tasks))
    if chooses is not None and chosen != "safetensors":
        fused = PreferenceInput(fused, chooses)
    notes = tuple(str(w.message) for w in caught if "explicit products" in str(w.message))
    with torch.no_grad(), replacing(path) as temporary:
        read = WRITERS[chosen](fused, example, temporary, loaded, batch == "dynamic")
        others = (loaded.example(number) for number in (1, 7) if batch == "dynamic")
        difference = _compare(loaded, read, [example, *others], tries)
        if difference > TOLERANCE:
            raise MtlkitError(
                f"the outputs of the {chosen} file differ by {difference:.1e} from the network's, "
                "relative to the largest; nothing was written"
            )
    if chosen == "safetensors":
        write_text(description_of(path), readable_json(loaded.record))
    return Exported(path, chosen, difference, notes)


def _choose_format(output: str | os.PathLike[str] | None, given: str | None) -> str:
    suffix = "" if output is None else Path(output).suffix.removeprefix(".").lower()
    chosen = given or suffix
    if not chosen:
        raise SpecError(f"set the format: one of {', '.join(FORMATS)}")
    if chosen not in FORMATS:
        raise unknown_name("format", chosen, FORMATS)
    if output is not None and suffix != chosen:
        raise SpecError(f"the format is {chosen}, but the file is called {Path(output).name}")
    return chosen


def _corners(tasks: int) -> list[Tensor]:
    """Return preferences to compare at: each task alone, and one between, whose sum is not one."""
    return [*torch.eye(tasks), torch.arange(1.0, tasks + 1)]


def _compare(
    loaded: LoadedModel,
    read: Predictor,
    examples: Iterable[Any],
    preferences: Sequence[Tensor | None],
) -> float:
    """Return the largest difference from the network, relative to its largest output."""
    worst = 0.0
    network: Any = loaded.network
    for example, preference in itertools.product(examples, preferences):
        if preference is None:
            wanted, found = loaded(example), read(example)
        else:
            network.set_preference(dict(zip(network.tasks, preference.tolist(), strict=True)))
            wanted, found = loaded(example), read(example, preference)
        if set(wanted) != set(found):
            raise MtlkitError(f"the file predicts {sorted(found)} instead of {sorted(wanted)}")
        for task, prediction in wanted.items():
            size = max(float(prediction.abs().max()), 1e-12)
            difference = float((prediction - found[task]).abs().max()) / size
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst
