"""CIFAR10 as ten binary tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import Count, DataError, DataSet, Share, SplitName, TensorSplit, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.files import DataDir, find_first
from mtlkit.data.readers import Array, find_npz, read_npz, read_pickle
from mtlkit.tasks import Task

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDER = "cifar-10-batches-py"
_TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_PADDING = 4


@register_dataset("cifar10")
class Cifar10(DataSet):
    """Each class is a task, "is it a cat?", with binary cross-entropy and F1, as in the paper.

    Training images are padded by 4, and randomly cropped to 32 x 32 and flipped. All images are
    standardized per channel by the mean and standard deviation of the training images.

    Args:
        val_share: fraction of the training images for validation; 0.2 leaves the paper's 40,000.
        augment: crop and flip the training images.
        train: largest number of training images.
    """

    summary = "CIFAR10 as ten binary tasks, 32 x 32"
    folder = "cifar10"
    layout = (
        "cifar-10-batches-py/{data_batch_1 ... data_batch_5,test_batch}, or these files themselves, "
        "or one .npz with x_train, y_train, x_test, y_test (images N x 32 x 32 x 3, uint8)"
    )
    source = "https://www.cs.toronto.edu/~kriz/cifar.html (python version)"
    needed = [(f"{_FOLDER}/{name}", name) for name in (*_TRAIN_BATCHES, "test_batch")]
    default_architecture = "paper_cifar10(logits=True)"
    input_shape = (3, 32, 32)
    tasks = tuple(Task.binary(name) for name in CLASSES)

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        val_share: Share = 0.2,
        augment: bool = True,
        train: Count | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self._val_share = val_share
        self._augment = augment
        self._train = train
        self._mean = self._std = torch.zeros(3, 1, 1)

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Raise :class:`DataError` unless all batches or one .npz file exist."""
        if find_npz(folder) is None:
            super().check_files(folder)

    def make_split(self, split: SplitName) -> TensorSplit:
        """Read one split; validation is drawn from the training images."""
        images, labels = _read(self.open_folder(), "test" if split == "test" else "train")
        if split != "test":
            chosen = self.hold_out(split, len(labels), self._val_share, self._train)
            images, labels = images[chosen], labels[chosen]
        inputs = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        known = torch.from_numpy(labels.astype(np.int64))
        targets = {name: (known == index).float()[:, None] for index, name in enumerate(CLASSES)}
        if split == "train":
            pixels = inputs.double().div_(255)
            self._mean = pixels.mean((0, 2, 3)).float()[:, None, None]
            self._std = pixels.std((0, 2, 3), correction=0).clamp_min(1e-6).float()[:, None, None]
        else:
            _ = self.train  # computes the statistics that standardize every split
        augmented = split == "train" and self._augment
        return TensorSplit(
            inputs,
            targets,
            augment=crop_and_flip if augmented else None,
            draws=3 if augmented else 0,
            transform=self._standardize,
            seed=self.seed,
        )

    def _standardize(self, images: Tensor) -> Tensor:
        return (images - self._mean) / self._std


def crop_and_flip(
    images: Tensor, targets: Targets, uniform: NDArray[np.float64]
) -> tuple[Tensor, Targets]:
    """Pad by 4, crop at random to the same size, flip half; images (B, C, H, W), uniform (B, 3)."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (_PADDING,) * 4)
    choices = 2 * _PADDING + 1
    top, left = torch.from_numpy((uniform[:, :2] * choices).astype(np.int64)).unbind(dim=1)
    flip = torch.from_numpy(uniform[:, 2] < 0.5)
    rows = top[:, None] + torch.arange(height)  # (B, H)
    columns = torch.arange(width).expand(count, width)
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - columns, columns)  # (B, W)
    cropped = padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return cropped, targets


def _read(folder: Path, part: str) -> tuple[Array, Array]:
    """Return images (N, 32, 32, 3) and labels of the published training or test images."""
    npz = find_npz(folder)
    if npz is not None:
        found = read_npz(npz, [f"x_{part}", f"y_{part}"])
        return _check(npz, found[f"x_{part}"], found[f"y_{part}"])
    names = _TRAIN_BATCHES if part == "train" else ("test_batch",)
    paths = [find_first(folder, (f"{_FOLDER}/{name}", name)) or folder for name in names]
    batches = [_read_batch(path) for path in paths]
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])


def _read_batch(path: Path) -> tuple[Array, Array]:
    content = read_pickle(path)
    if not isinstance(content, dict) or b"data" not in content or b"labels" not in content:
        raise DataError(f"{path} is not a CIFAR10 batch, a mapping with data and labels")
    flat, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    if flat.ndim != 2 or flat.shape[1] != 3072:
        raise DataError(f"{path}: data is {flat.shape}, expected (N, 3072)")
    return _check(path, flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)


def _check(path: Path, images: Array, labels: Array) -> tuple[Array, Array]:
    labels = labels.reshape(-1)
    if images.dtype != np.uint8 or images.shape != (len(labels), 32, 32, 3):
        raise DataError(
            f"{path}: {len(labels)} labels for images {images.shape} of {images.dtype}; "
            "expected as many uint8 images of 32 x 32 x 3"
        )
    is_whole = np.issubdtype(labels.dtype, np.integer)
    if not labels.size or not is_whole or not set(labels.tolist()) <= set(range(10)):
        raise DataError(f"{path}: labels must be integers from 0 to 9")
    return images, labels
