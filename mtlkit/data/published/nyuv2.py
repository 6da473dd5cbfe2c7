"""NYUv2: segmentation in 13 classes, depth and surface normals of indoor scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import DataError, register_dataset
from mtlkit.data.published.mtan import MtanDataSet
from mtlkit.data.published.mtan_files import PARTS, ArraySource, standard_arrays
from mtlkit.tasks import Task

INDOOR_CLASSES = (
    "bed",
    "books",
    "ceiling",
    "chair",
    "floor",
    "furniture",
    "objects",
    "picture",
    "sofa",
    "table",
    "tv",
    "wall",
    "window",
)


def dense_tasks() -> tuple[Task, ...]:
    """Segmentation, depth and normals."""
    return (
        Task.segmentation("segmentation", INDOOR_CLASSES),
        Task.depth("depth"),
        Task.normals("normals"),
    )


@register_dataset("nyuv2")
class NyuV2(MtanDataSet):
    """Indoor scenes (Silberman et al., 2012), in the preparation of MTAN (Liu et al., 2019).

    MTAN's 654 ``val`` images are the test set here; validation is drawn from the training images, so
    that no choice is made on the test set. A training image is scaled by 1, 1.2 or 1.5 and cropped,
    depth being divided by the scale (things come nearer), and flipped half of the time, the normals'
    x with it. The options are those of :class:`~mtlkit.data.published.mtan.MtanDataSet`.
    """

    summary = "NYUv2 indoor scenes: segmentation (13 classes), depth, normals"
    folder = "nyuv2"
    layout = (
        "{train,val}/{image,label,depth,normal}/N.npy (288 x 384 with 3, no, 1 and 3 channels), "
        "or one .npz with image_train, label_train, depth_train, normal_train and the same for _val"
    )
    source = "https://github.com/lorenmt/mtan (see its section on data sets)"
    default_architecture = "segnet"
    kinds = {name: (name,) for name in ("image", "label", "depth", "normal")}
    tasks = dense_tasks()

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Either MTAN's folders or one .npz must be there."""
        if _npz(folder) is None:
            super().check_files(folder)

    @classmethod
    def open_source(cls, folder: Path) -> ArraySource:
        """The arrays below ``folder``."""
        path = _npz(folder)
        return super().open_source(folder) if path is None else _Arrays(path)


class _Arrays:
    """One .npz with all images; kept in its compact types, since 300 images are 80 MB as floats."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
                self._arrays = {
                    (part, kind): content[f"{kind}_{part}"] for part in PARTS for kind in NyuV2.kinds
                }
        except KeyError as error:
            raise DataError(f"{path} lacks the array {error}.\n{NyuV2.where_to_get()}") from None
        except Exception as error:  # NumPy raises many kinds of errors for damaged files
            raise DataError(f"cannot read {path}: {error}; fetch it again") from None

    def count(self, part: str) -> int:
        return len(self._arrays[part, "image"])

    def read(self, part: str, index: int) -> dict[str, NDArray[Any]]:
        found = {kind: self._arrays[part, kind][index] for kind in NyuV2.kinds}
        return standard_arrays(found, f"{self._path}, {part} image {index}", len(INDOOR_CLASSES))


def _npz(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.npz"))), None)
