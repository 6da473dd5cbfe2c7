"""Images with dense targets as MTAN prepared them: one .npy per image and kind of target."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import DataSet, Split, SplitName
from mtlkit.data.collate import Targets
from mtlkit.data.published.mtan_files import PARTS, ArrayFiles, ArraySource
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError

_SCALES = (1.0, 1.2, 1.5)
_TASKS = {"label": "segmentation", "depth": "depth", "normal": "normals"}


class MtanDataSet(DataSet):
    """Folders ``train`` and ``val``, each with a folder per kind, with files ``0.npy``, ``1.npy``, ...

    The 654 (or 500) ``val`` images are the test set here; validation is drawn from the training images,
    so that no choice is made on the test set.

    Args:
        data_dir: see :class:`DataSet`.
        seed: decides the validation images and the augmentations.
        val_share: share of the training images kept for validation; 0 keeps none, as the field does.
        augment: scale, crop and flip the training images.
        size: (height, width) to resize to; None keeps the files' size.
        train: at most this many training images.
    """

    kinds: ClassVar[Mapping[str, Sequence[str]]]
    """Folders that may hold a kind: ``image``, ``label``, ``depth`` and ``normal``."""
    inverse_depth: ClassVar[bool] = False
    """Whether a larger depth is nearer."""

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
        if val_share != 0:
            self.check_share(val_share)
        self.check_counts(train=train)
        if size is not None and (len(size) != 2 or not all(isinstance(s, int) and s > 0 for s in size)):
            raise SpecError(f"option size of {self.name} must be (height, width), not {size!r}")
        self._val_share = val_share
        self._augment = augment
        self._size = None if size is None else (int(size[0]), int(size[1]))
        self._train = train
        self._source: ArraySource | None = None

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """The folders of all kinds must be there."""
        absent = [
            folder / part / names[0]
            for part in PARTS
            for names in cls.kinds.values()
            if not any((folder / part / name).is_dir() for name in names)
        ]
        if absent:
            raise cls.missing(*absent)

    @classmethod
    def open_source(cls, folder: Path) -> ArraySource:
        """The arrays below ``folder``."""
        classes = next(task.outputs or 0 for task in cls.tasks if task.kind == "segmentation")
        return ArrayFiles(folder, cls.kinds, classes, cls.missing)

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
            return self._scenes("val", np.arange(source.count("val")), False)
        train, val = np.arange(source.count("train")), np.arange(0)
        if self._val_share:
            train, val = self.draw_validation(len(train), self._val_share)
        if split == "val":
            return self._scenes("train", val, False)
        if self._train is not None:
            train = generator(self.seed, self.name, "train").permutation(train)[: self._train]
        return self._scenes("train", train, self._augment)

    def _scenes(self, part: str, indices: NDArray[np.integer], augment: bool) -> Split:
        source = self._open()
        return _Scenes(source, part, indices, self._size, augment, self.inverse_depth, self.seed)

    def _open(self) -> ArraySource:
        if self._source is None:
            self._source = self.open_source(self.open_folder())
        return self._source


class _Scenes(Split):
    """Images with the targets of all tasks."""

    def __init__(
        self,
        source: ArraySource,
        part: str,
        indices: NDArray[np.integer],
        size: tuple[int, int] | None,
        augment: bool,
        inverse_depth: bool,
        seed: int,
    ) -> None:
        super().__init__(seed)
        self._source = source
        self._part = part
        self._indices = indices
        self._size = size
        self._augment = augment
        self._inverse_depth = inverse_depth

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a split with {len(self)} samples")
        index %= len(self)
        arrays = self._source.read(self._part, int(self._indices[index]))
        image = _channels_first(arrays.pop("image"))
        targets = {_TASKS[kind]: _channels_first(array) for kind, array in arrays.items()}
        targets["depth"] = targets["depth"][None]
        if self._size is not None and self._size != tuple(image.shape[1:]):
            image, targets = _resize(image, targets, self._size)
        if self._augment:
            uniform = self.uniform([index], 4)[0]
            return scale_crop_flip(image, targets, uniform, inverse_depth=self._inverse_depth)
        return image, targets


def _channels_first(array: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.permute(2, 0, 1).contiguous() if tensor.dim() == 3 else tensor


def scale_crop_flip(
    image: Tensor, targets: Targets, uniform: NDArray[np.float64], *, inverse_depth: bool = False
) -> tuple[Tensor, Targets]:
    """MTAN's augmentation of one image (3, H, W), from four numbers in [0, 1).

    The image is scaled by 1, 1.2 or 1.5 and cropped, depth being divided by the scale (things come
    nearer) or multiplied where it is inverse; half of the images are flipped, and the normals' x with
    them.
    """
    height, width = image.shape[1:]
    scale = _SCALES[int(uniform[0] * len(_SCALES))]
    crop_height, crop_width = int(height / scale), int(width / scale)
    top = int(uniform[1] * (height - crop_height + 1))
    left = int(uniform[2] * (width - crop_width + 1))
    window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
    image, targets = _resize(
        image[window], {name: target[window] for name, target in targets.items()}, (height, width)
    )
    targets["depth"] = targets["depth"] * scale if inverse_depth else targets["depth"] / scale
    if uniform[3] < 0.5:
        image = image.flip(-1)
        targets = {name: target.flip(-1) for name, target in targets.items()}
        if "normals" in targets:
            targets["normals"] = targets["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    return image, targets


def _resize(image: Tensor, targets: Targets, size: tuple[int, int]) -> tuple[Tensor, Targets]:
    """Resize bilinearly for the image, by nearest neighbor for the targets with unknown pixels."""
    resized = functional.interpolate(image[None], size=size, mode="bilinear", align_corners=True)[0]
    label = targets["segmentation"][None, None].float()
    changed = {
        name: functional.interpolate(target[None], size=size, mode="nearest")[0]
        for name, target in targets.items()
        if name != "segmentation"
    }
    classes = functional.interpolate(label, size=size, mode="nearest")[0, 0].long()
    return resized, {"segmentation": classes, **changed}
