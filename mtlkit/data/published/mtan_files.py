"""The arrays of MTAN's preparation: files, shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import DataError

PARTS = ("train", "val")


class ArraySource(Protocol):
    """Where the arrays of an image come from."""

    def count(self, part: str) -> int:
        """Number of images of ``train`` or ``val``."""

    def read(self, part: str, index: int) -> dict[str, NDArray[Any]]:
        """The arrays of an image by kind, in standard types."""


class ArrayFiles:
    """One .npy per image and kind, in a folder per part and kind.

    Args:
        folder: of the data set.
        kinds: folders that may hold a kind.
        classes: number of classes of the labels.
        missing: makes the error for files that are not there.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, Sequence[str]],
        classes: int,
        missing: Callable[..., DataError],
    ) -> None:
        self._classes = classes
        self._folders = {
            (part, kind): next(folder / part / n for n in names if (folder / part / n).is_dir())
            for part in PARTS
            for kind, names in kinds.items()
        }
        self._kinds = tuple(kinds)
        self._names: dict[str, list[str]] = {}
        for part in PARTS:
            names = {path.name for path in self._folders[part, "image"].glob("*.npy")}
            if not names:
                raise missing(self._folders[part, "image"] / "0.npy")
            for kind in self._kinds[1:]:
                paths = [self._folders[part, kind] / name for name in sorted(names)]
                absent = [path for path in paths if not path.is_file()]
                if absent:
                    raise missing(*absent[:3])
            self._names[part] = sorted(names, key=lambda name: (len(name), name))  # 2.npy before 10.npy

    def count(self, part: str) -> int:
        """Number of images of a part."""
        return len(self._names[part])

    def read(self, part: str, index: int) -> dict[str, NDArray[Any]]:
        """The arrays of an image by kind."""
        name = self._names[part][index]
        found = {}
        for kind in self._kinds:
            path = self._folders[part, kind] / name
            try:
                with path.open("rb") as file:
                    found[kind] = np.lib.format.read_array(file, allow_pickle=False)
            except Exception as error:  # NumPy raises many kinds of errors for damaged files
                raise DataError(f"cannot read {path}: {error}; fetch it again") from None
        where = str(self._folders[part, "image"].parent / "*" / name)
        return standard_arrays(found, where, self._classes)


def standard_arrays(
    found: Mapping[str, NDArray[Any]], where: str, classes: int
) -> dict[str, NDArray[Any]]:
    """Floats in the unit interval, int64 labels, depths, unit normals; shapes checked."""
    squeezed = dict(found)
    if squeezed["depth"].ndim == 3:
        squeezed["depth"] = squeezed["depth"][..., 0]
    size = squeezed["image"].shape[:2]
    wanted = {"image": (*size, 3), "label": size, "depth": size, "normal": (*size, 3)}
    if any(array.shape != wanted[kind] for kind, array in squeezed.items()):
        shapes = ", ".join(f"{kind} {array.shape}" for kind, array in found.items())
        raise DataError(f"{where}: shapes do not fit: {shapes}")
    if min(size) == 0 or any(array.dtype.kind not in "fiu" for array in found.values()):
        kinds = ", ".join(f"{kind} {array.shape} of {array.dtype}" for kind, array in found.items())
        raise DataError(f"{where}: expected images of numbers, not {kinds}")
    labels = np.nan_to_num(squeezed["label"], nan=-1.0)
    if labels.max() >= classes or labels.min() < -1:
        raise DataError(f"{where}: labels must be -1 (unknown) to {classes - 1}")
    standard = {kind: _single_precision(array, where) for kind, array in squeezed.items()}
    if found["image"].dtype == np.uint8:
        standard["image"] /= 255
    if "normal" in found and found["normal"].dtype == np.int8:
        # rounding to bytes leaves lengths slightly off one; a zero vector stays zero: unknown
        length = np.linalg.norm(standard["normal"], axis=-1, keepdims=True)
        standard["normal"] /= np.maximum(length, 1)
    standard["depth"] = np.nan_to_num(standard["depth"], nan=0.0)
    return {**standard, "label": labels.astype(np.int64)}


def _single_precision(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    if np.isinf(single).any():
        raise DataError(f"{where}: numbers that are infinite or too large; fetch the file again")
    return single
