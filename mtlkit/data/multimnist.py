"""Multi-MNIST and Multi-Fashion: two overlapping images, five tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataError, register_dataset
from mtlkit.data.digit_pairs import PublishedDigits, Source, overlap
from mtlkit.data.idx import read_idx

__all__ = ["MultiFashion", "MultiMnist"]

# (images, labels) for the files that become train and val, and for those that become test
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# Sabour et al. (2017) put digits of 28 x 28 at random on a canvas of 36 x 36; here, in its corners
_SHIFT = 8
_SIZE = 28


@register_dataset("multimnist")
class MultiMnist(PublishedDigits):
    """Two MNIST digits in opposite corners of a 36 x 36 canvas, overlapping, resized to 28 x 28."""

    summary = "two overlapped MNIST digits, 28 x 28; five tasks"
    folder = "mnist"
    layout = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, each with or without .gz"
    source = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    input_shape = (1, _SIZE, _SIZE)

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
        return overlap(left, right, _SHIFT, _SIZE)


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
