"""Targets that are maps: classes, depth or normals per pixel, one file per image."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.config.spec import Part, parse_call
from mtlkit.data.files import DataDir, DataError, find_path, reading
from mtlkit.data.images.files import import_pillow
from mtlkit.data.readers import read_npy
from mtlkit.errors import SpecError
from mtlkit.tasks import NO_LABEL, Task, create_task
from mtlkit.tasks.registry import kinds

MAP_SUFFIXES = (".png", ".npy", ".tif", ".tiff", ".bmp", ".gif")
_ONE_CHANNEL = ("1", "L", "P", "I", "F", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class MapTarget:
    """A task whose target is a map, and where its files are.

    Attributes:
        task: name of the task.
        kind: kind of the task with all options, for :func:`mtlkit.tasks.create_task`.
        column: column of the table with the names of the files; None for the files of ``folder``.
        folder: folder with a file of the same name for every image; None to use ``column``.
        unit: factor of the values in the files, for depth.
        missing: value of pixels whose class is unknown.
    """

    task: str
    kind: str
    column: str | int | None = None
    folder: str | None = None
    unit: float = 1.0
    missing: int = 255

    def located(self, find: Callable[[Any], str], data_dir: DataDir) -> MapTarget:
        """Return the target with the name of its column, or the path of its folder."""
        if self.folder is None:
            return replace(self, column=find(self.column))
        return replace(self, folder=str(find_path(self.folder, data_dir, folder=True)))

    @cached_property
    def made(self) -> Task:
        """Create the task."""
        return create_task(self.kind, self.task)

    @property
    def classes(self) -> bool:
        """Whether the pixels are classes."""
        return self.made.kind == "segmentation"

    @property
    def channels(self) -> int:
        """Number of channels in a file."""
        return 1 if self.classes else self.made.outputs or 1

    @property
    def _has_mask(self) -> bool:
        """Whether 0 is a valid value, and unknown pixels are NaN."""
        return math.isnan(self.made.missing)

    def read(self, path: Path) -> Tensor:
        """Return (C, H, W) of a file: classes counted from 1, or numbers; 0 for unknown pixels.

        So pixels from outside of the image, which a rotation or a crop fills with 0, are unknown. If 0
        is a valid value, one more channel is the mask of the known pixels.
        """
        values = _read_array(path)
        if self.classes:
            return self._classes(values, path)
        outputs = self.channels
        if values.ndim == 2:
            values = values[..., None]
        if values.shape[-1] != outputs and values.shape[0] == outputs:
            values = np.moveaxis(values, 0, -1)
        if values.shape[-1] != outputs:
            raise DataError(
                f"the map {path} has shape {values.shape}; task {self.task!r} needs {outputs} "
                f"channel{'s' if outputs > 1 else ''}"
            )
        numbers = values.astype(np.float32)
        if values.dtype == np.uint8 and self._has_mask:  # gray values
            numbers = numbers / np.float32(255)
        elif values.dtype == np.uint8 and outputs == 3:  # normals as colors; black is unknown
            numbers = np.where(values.any(axis=-1, keepdims=True), numbers / 127.5 - 1, 0)
        known = np.isfinite(numbers).all(axis=-1, keepdims=True)
        numbers = np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0) * self.unit
        if self._has_mask:
            numbers = np.concatenate([numbers, known], axis=-1)
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(numbers, -1, 0), dtype=np.float32))

    def finish(self, target: Tensor) -> Tensor:
        """Return the target of the task from the result of :meth:`read`, transformed or not."""
        if self._has_mask:
            return torch.where(target[-1:] > 0, target[:-1].float(), torch.nan)
        if not self.classes:
            return target.float()
        classes = target[0].long()
        return torch.where(classes > 0, classes - 1, NO_LABEL)

    def nothing(self, size: tuple[int, int]) -> Tensor:
        """Return the result of :meth:`read` for a missing map."""
        return torch.zeros(
            self.channels + self._has_mask, *size, dtype=torch.int64 if self.classes else torch.float32
        )

    def map_size(self, path: Path) -> tuple[int, int]:
        """Return (height, width) of a file, from its header."""
        with reading(f"the map {path}"):
            if path.suffix.lower() == ".npy":
                shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
                channels_first = len(shape) == 3 and shape[0] == self.channels != shape[-1]
                height, width = shape[-2:] if channels_first else shape[:2]
                return int(height), int(width)
            with import_pillow().open(path) as image:
                if self.channels == 1 and image.mode not in _ONE_CHANNEL:
                    what = "the number of its class" if self.classes else "one number"
                    raise DataError(
                        f"the map {path} has mode {image.mode}, but a pixel must be {what}; save it "
                        "with one channel (mode L or P), or as .npy"
                    )
                return int(image.height), int(image.width)

    def _classes(self, values: NDArray[Any], path: Path) -> Tensor:
        if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
            values = values[..., 0] if values.shape[-1] == 1 else values[0]
        if values.ndim != 2:
            raise DataError(
                f"the map {path} has shape {values.shape}; the classes of task {self.task!r} need "
                "(height, width)"
            )
        numbers = np.nan_to_num(values.astype(np.float64), nan=-1.0).astype(np.int64)
        unknown = (numbers == self.missing) | (numbers < 0)
        count = self.made.outputs or 0
        if (numbers[~unknown] >= count).any():
            invalid = np.unique(numbers[~unknown & (numbers >= count)])[:6].tolist()
            raise DataError(
                f"the map {path} holds {', '.join(map(str, invalid))}, but task {self.task!r} has the "
                f"classes 0 to {count - 1}, and {self.missing} for unknown pixels; set classes=... or "
                "missing=..."
            )
        return torch.from_numpy(np.where(unknown, 0, numbers + 1))[None]


def find_map_target(key: Any, kind: Any) -> MapTarget | None:
    """Return the target, if the targets of this kind are maps; else None."""
    if kind is None:
        return None
    part = parse_call(kind)
    if part.name not in kinds.names() or not getattr(kinds.get(part.name), "dense", False):
        return None
    options: dict[str, Any] = dict(part.options)
    own = {
        name: options.pop(name) for name in ("column", "folder", "unit", "missing") if name in options
    }
    if "column" in own and "folder" in own:
        raise SpecError(f"target {key!r}: give column or folder, not both")
    if "folder" not in own:
        own.setdefault("column", key)
    target = MapTarget(str(key), str(Part(part.name, options, part.arguments)), **own)
    for name, types in (("unit", int | float), ("missing", int), ("folder", str | None)):
        if not isinstance(getattr(target, name), types):
            raise SpecError(f"target {key!r}: {name} cannot be {getattr(target, name)!r}")
    _ = target.made  # raises for wrong options before files are read
    return target


def _read_array(path: Path) -> NDArray[Any]:
    if path.suffix.lower() == ".npy":
        values = read_npy(path)
    else:
        with reading(f"the map {path}"), import_pillow().open(path) as image:
            values = np.array(image)
    if values.dtype.kind not in "biuf" or values.ndim not in (2, 3) or 0 in values.shape:
        raise DataError(f"the map {path} is an array {values.shape} of {values.dtype}; expected numbers")
    return values
