"""Multi-MNIST and Multi-Fashion: two overlapping images, five tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataError, register_dataset
from mtlkit.data.published.digit_pairs import PublishedDigits, Source, overlap
from mtlkit.data.published.idx import read_idx
from mtlkit.errors import unknown_name

# (images, labels) for the files that become train and val, and for those that become test
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_SIZE = 28
_CANVAS = 36  # after Sabour et al. (2017)
# where the right digit begins; with ``sener`` rows and columns 34 and 35 stay empty
_SHIFT = {"sener": 6, "corners": 8}
Arrangement: TypeAlias = Literal["sener", "corners"]


@register_dataset("multimnist")
class MultiMnist(PublishedDigits):
    """Two overlapping MNIST digits on a 36 x 36 canvas, resized to 28 x 28.

    Args:
        data_dir, seed, options: see :class:`~mtlkit.data.published.digit_pairs.DigitPairs`.
        layout: ``sener`` (2018), which the field and the RotoGrad paper use: the right digit begins at
            row and column 6, the nearest pixel is kept when the canvas shrinks, and every digit is once
            a left one, with a random partner. ``corners`` is easier: the right digit begins at 8, the
            canvas is resized bilinearly, and every digit is once a left and once a right one.
    """

    summary = "two overlapped MNIST digits, 28 x 28; five tasks"
    folder = "mnist"
    layout = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, each with or without .gz"
    source = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    input_shape = (1, _SIZE, _SIZE)

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        layout: Arrangement = "sener",
        **options: Any,
    ) -> None:
        if layout not in _SHIFT:
            raise unknown_name("layout", str(layout), _SHIFT)
        super().__init__(data_dir, seed, **options)
        self._arrangement = layout

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """All four idx files must be there."""
        absent = [folder / name for pair in _FILES.values() for name in pair if not _find(folder, name)]
        if absent:
            raise cls.missing(*absent)

    def read_digits(self, folder: Path, part: Literal["train", "test"]) -> Source:
        """Digits and labels of one pair of idx files."""
        return _read(folder, part)

    def join(self, left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Tensor:
        """Overlap two digits."""
        shift, smooth = _SHIFT[self._arrangement], self._arrangement == "corners"
        return overlap(left, right, shift, _SIZE, canvas_size=_CANVAS, smooth=smooth)

    def draw_pairs(
        self, sources: int, count: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """With ``sener`` every digit is once a left one, and its partner any digit."""
        left, right = super().draw_pairs(sources, count, random)
        return left, random.integers(0, sources, count) if self._arrangement == "sener" else right


@register_dataset("multifashion")
class MultiFashion(MultiMnist):
    """Two Fashion-MNIST images, overlapped like :class:`MultiMnist`; a class's number is its digit."""

    summary = "two overlapped Fashion-MNIST images, 28 x 28; five tasks"
    folder = "fashion_mnist"
    source = "https://github.com/zalandoresearch/fashion-mnist"
    classes = (
        "T-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    )


def _find(folder: Path, name: str) -> Path | None:
    for candidate in (name, f"{name}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None


def _read(folder: Path, part: str) -> Source:
    image_name, label_name = _FILES[part]
    image_path, label_path = _find(folder, image_name), _find(folder, label_name)
    assert image_path is not None
    assert label_path is not None
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{image_path} holds {len(images)} images, {label_path} {len(labels)} labels; "
            "they are not from the same set"
        )
    if images.shape[1:] != (28, 28):
        raise DataError(f"{image_path} holds images of {images.shape[1:]}, expected 28 x 28")
    if labels.size and labels.max() > 9:
        raise DataError(f"{label_path} holds the label {labels.max()}; labels are 0 to 9")
    return images, labels.astype(np.int64)
