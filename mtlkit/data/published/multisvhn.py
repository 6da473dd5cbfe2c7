"""Multi-SVHN: two house-number digits side by side, five tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataError, register_dataset
from mtlkit.data.published.digit_pairs import PublishedDigits, Source
from mtlkit.data.published.mat import read_mat

_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
# ITU-R BT.601 luma in thousandths: integer arithmetic rounds the same on every machine
_LUMA = np.array([299, 587, 114], dtype=np.int32)


@register_dataset("multisvhn")
class MultiSvhn(PublishedDigits):
    """Two SVHN digits in gray, pasted side by side without overlap: 32 x 64."""

    summary = "two gray SVHN digits side by side, 32 x 64; five tasks"
    folder = "svhn"
    layout = "train_32x32.mat, test_32x32.mat (the cropped digits, format 2)"
    source = "http://ufldl.stanford.edu/housenumbers/"
    net = "paper_svhn"
    input_shape = (1, 32, 64)

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Both .mat files must be there."""
        absent = [folder / name for name in _FILES.values() if not (folder / name).is_file()]
        if absent:
            raise cls.missing(*absent)

    def read_digits(self, folder: Path, part: Literal["train", "test"]) -> Source:
        """Digits and labels of one .mat file."""
        return _read_mat(folder / _FILES[part])

    def join(self, left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Tensor:
        """Paste two digits next to each other."""
        return torch.from_numpy(np.concatenate([left, right], axis=2))[:, None]


def _read_mat(path: Path) -> Source:
    content = read_mat(path)
    if "X" not in content or "y" not in content:
        raise DataError(f"{path} must hold the arrays X and y, as SVHN's cropped digits do")
    images, labels = content["X"], content["y"].reshape(-1)
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.shape[3] != len(labels):
        raise DataError(
            f"{path}: X is {images.shape} with {len(labels)} labels; expected (32, 32, 3, N) with N"
        )
    if images.dtype != np.uint8 or labels.size == 0 or labels.min() < 0 or labels.max() > 10:
        raise DataError(f"{path}: X must be uint8 and y from 1 to 10 (10 is the digit 0)")
    gray = np.empty((len(labels), 32, 32), dtype=np.uint8)
    for start in range(0, len(labels), 4096):  # in chunks, to bound the memory of the wider integers
        chunk = images[..., start : start + 4096].transpose(3, 0, 1, 2).astype(np.int32)
        gray[start : start + 4096] = (chunk @ _LUMA + 500) // 1000
    return gray, labels.astype(np.int64) % 10
