"""NYUv2: segmentation in 13 classes, depth and surface normals of indoor scenes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import (
    DataError,
    DataSet,
    Split,
    SplitName,
    Targets,
    register_dataset,
)
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError
from mtlkit.tasks import Task

__all__ = ["INDOOR_CLASSES", "NyuV2", "dense_tasks", "scale_crop_flip"]

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
_KINDS = ("image", "label", "depth", "normal")
_PARTS = ("train", "val")
_SCALES = (1.0, 1.2, 1.5)


def dense_tasks() -> tuple[Task, ...]:
    """Segmentation, depth and normals."""
    return (
        Task.segmentation("segmentation", INDOOR_CLASSES),
        Task.depth("depth"),
        Task.normals("normals"),
    )


@register_dataset("nyuv2")
class NyuV2(DataSet):
    """Indoor scenes (Silberman et al., 2012), in the preparation of MTAN (Liu et al., 2019).

    MTAN's 654 ``val`` images are the test set here; validation is drawn from the training images, so
    that no choice is made on the test set. A training image is scaled by 1, 1.2 or 1.5 and cropped,
    depth being divided by the scale (things come nearer), and flipped half of the time, the normals'
    x with it.

    Args:
        data_dir: see :class:`DataSet`.
        seed: decides the validation images and the augmentations.
        val_share: share of the training images kept for validation.
        augment: scale, crop and flip the training images.
        size: (height, width) to resize to; None keeps the files' size (288 x 384 in MTAN's files).
        train: at most this many training images.
    """

    summary = "NYUv2 indoor scenes: segmentation (13 classes), depth, normals"
    folder = "nyuv2"
    layout = (
        "{train,val}/{image,label,depth,normal}/N.npy (288 x 384 with 3, no, 1 and 3 channels), "
        "or one .npz with image_train, label_train, depth_train, normal_train and the same for _val"
    )
    source = "https://github.com/lorenmt/mtan (see its section on data sets)"
    default_architecture = "segnet"
    tasks = dense_tasks()

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        val_share: float = 0.1,
        augment: bool = True,
        size: Sequence[int] | None = None,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self.check_share(val_share)
        self.check_counts(train=train)
        if size is not None and (len(size) != 2 or not all(isinstance(s, int) and s > 0 for s in size)):
            raise SpecError(f"option size of {self.name} must be (height, width), not {size!r}")
        self._val_share = val_share
        self._augment = augment
        self._size = None if size is None else (int(size[0]), int(size[1]))
        self._train = train
        self._source: _Files | _Arrays | None = None

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Either MTAN's folders or one .npz must be there."""
        if _npz(folder) is not None:
            return
        absent = [
            folder / part / kind
            for part in _PARTS
            for kind in _KINDS
            if not (folder / part / kind).is_dir()
        ]
        if absent:
            raise cls.missing(*absent)

    @property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]  # the files may come later
        """(3, height, width), read off the first image where ``size`` is not given."""
        if self._size is not None:
            return (3, *self._size)
        return (3, *self._open().read("train", 0)["label"].shape)

    def make_split(self, split: SplitName) -> Split:
        """One split; ``test`` is what MTAN calls val."""
        source = self._open()
        if split == "test":
            return _Scenes(source, "val", np.arange(source.count("val")), self._size, False, self.seed)
        train, val = self.draw_validation(source.count("train"), self._val_share)
        if split == "val":
            return _Scenes(source, "train", val, self._size, False, self.seed)
        if self._train is not None:
            train = generator(self.seed, self.name, "train").permutation(train)[: self._train]
        return _Scenes(source, "train", train, self._size, self._augment, self.seed)

    def _open(self) -> _Files | _Arrays:
        if self._source is None:
            folder = self.open_folder()
            path = _npz(folder)
            self._source = _Files(folder) if path is None else _Arrays(path)
        return self._source


class _Scenes(Split):
    """Images with the targets of the three tasks."""

    def __init__(
        self,
        source: _Files | _Arrays,
        part: str,
        indices: NDArray[np.integer],
        size: tuple[int, int] | None,
        augment: bool,
        seed: int,
    ) -> None:
        super().__init__(seed)
        self._source = source
        self._part = part
        self._indices = indices
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a split with {len(self)} samples")
        index %= len(self)
        arrays = self._source.read(self._part, int(self._indices[index]))
        image = torch.from_numpy(arrays["image"]).permute(2, 0, 1).contiguous()
        targets = {
            "segmentation": torch.from_numpy(arrays["label"]),
            "depth": torch.from_numpy(arrays["depth"])[None],
            "normals": torch.from_numpy(arrays["normal"]).permute(2, 0, 1).contiguous(),
        }
        if self._size is not None and self._size != tuple(image.shape[1:]):
            image, targets = _resize(image, targets, self._size)
        if self._augment:
            return scale_crop_flip(image, targets, self.uniform([index], 4)[0])
        return image, targets


def scale_crop_flip(
    image: Tensor, targets: Targets, uniform: NDArray[np.float64]
) -> tuple[Tensor, Targets]:
    """MTAN's augmentation of one image (3, H, W), from four numbers in [0, 1)."""
    height, width = image.shape[1:]
    scale = _SCALES[int(uniform[0] * len(_SCALES))]
    crop_height, crop_width = int(height / scale), int(width / scale)
    top = int(uniform[1] * (height - crop_height + 1))
    left = int(uniform[2] * (width - crop_width + 1))
    window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
    image, targets = _resize(
        image[window], {name: target[window] for name, target in targets.items()}, (height, width)
    )
    targets["depth"] = targets["depth"] / scale
    if uniform[3] < 0.5:
        image = image.flip(-1)
        targets = {name: target.flip(-1) for name, target in targets.items()}
        targets["normals"] = targets["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    return image, targets


def _resize(image: Tensor, targets: Targets, size: tuple[int, int]) -> tuple[Tensor, Targets]:
    """Resize bilinearly for the image, by nearest neighbour for the targets with unknown pixels."""
    resized = functional.interpolate(image[None], size=size, mode="bilinear", align_corners=True)[0]
    label = targets["segmentation"][None, None].float()
    return resized, {
        "segmentation": functional.interpolate(label, size=size, mode="nearest")[0, 0].long(),
        "depth": functional.interpolate(targets["depth"][None], size=size, mode="nearest")[0],
        "normals": functional.interpolate(targets["normals"][None], size=size, mode="nearest")[0],
    }


class _Files:
    """MTAN's layout: one .npy per image and kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, list[str]] = {}
        for part in _PARTS:
            names = {path.name for path in (folder / part / "image").glob("*.npy")}
            if not names:
                raise NyuV2.missing(folder / part / "image" / "0.npy")
            for kind in _KINDS[1:]:
                absent = [folder / part / kind / n for n in sorted(names)]
                absent = [path for path in absent if not path.is_file()]
                if absent:
                    raise NyuV2.missing(*absent[:3])
            self._names[part] = sorted(names, key=lambda name: (len(name), name))  # 2.npy before 10.npy

    def count(self, part: str) -> int:
        return len(self._names[part])

    def read(self, part: str, index: int) -> dict[str, NDArray[Any]]:
        name = self._names[part][index]
        found = {}
        for kind in _KINDS:
            path = self._folder / part / kind / name
            try:
                with path.open("rb") as file:
                    found[kind] = np.lib.format.read_array(file, allow_pickle=False)
            except Exception as error:  # NumPy raises many kinds of errors for damaged files
                raise DataError(f"cannot read {path}: {error}; fetch it again") from None
        return _standard(found, str(self._folder / part / "*" / name))


class _Arrays:
    """One .npz with all images; kept in its compact types, since 300 images are 80 MB as floats."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
                self._arrays = {
                    (part, kind): content[f"{kind}_{part}"] for part in _PARTS for kind in _KINDS
                }
        except KeyError as error:
            raise DataError(f"{path} lacks the array {error}.\n{NyuV2.where_to_get()}") from None
        except Exception as error:  # as above
            raise DataError(f"cannot read {path}: {error}; fetch it again") from None

    def count(self, part: str) -> int:
        return len(self._arrays[part, "image"])

    def read(self, part: str, index: int) -> dict[str, NDArray[Any]]:
        found = {kind: self._arrays[part, kind][index] for kind in _KINDS}
        return _standard(found, f"{self._path}, {part} image {index}")


def _standard(found: dict[str, NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
    """Floats in the unit interval, int64 labels, metres, unit normals; shapes checked."""
    image, label, depth, normal = (found[kind] for kind in _KINDS)
    depth = depth[..., 0] if depth.ndim == 3 else depth
    size = image.shape[:2]
    if (
        image.shape != (*size, 3)
        or label.shape != size
        or depth.shape != size
        or normal.shape != (*size, 3)
    ):
        shapes = ", ".join(f"{kind} {found[kind].shape}" for kind in _KINDS)
        raise DataError(f"{where}: shapes do not fit: {shapes}")
    if min(size) == 0 or any(array.dtype.kind not in "fiu" for array in found.values()):
        kinds = ", ".join(f"{kind} {found[kind].shape} of {found[kind].dtype}" for kind in _KINDS)
        raise DataError(f"{where}: expected images of numbers, not {kinds}")
    standard_image = _single_precision(image, where)
    if image.dtype == np.uint8:
        standard_image /= 255
    standard_normal = _single_precision(normal, where)
    if normal.dtype == np.int8:
        # rounding to bytes leaves lengths slightly off one; a zero vector stays zero: unknown
        length = np.linalg.norm(standard_normal, axis=-1, keepdims=True)
        standard_normal /= np.maximum(length, 1)
    labels = np.nan_to_num(label, nan=-1.0)
    if labels.max() >= len(INDOOR_CLASSES) or labels.min() < -1:
        raise DataError(f"{where}: labels must be -1 (unknown) to {len(INDOOR_CLASSES) - 1}")
    return {
        "image": standard_image,
        "label": labels.astype(np.int64),
        "depth": np.nan_to_num(_single_precision(depth, where), nan=0.0),
        "normal": standard_normal,
    }


def _single_precision(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    if np.isinf(single).any():
        raise DataError(f"{where}: numbers that are infinite or too large; fetch the file again")
    return single


def _npz(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.npz"))), None)
