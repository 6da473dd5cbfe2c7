"""CIFAR10 as ten binary tasks."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import DataError, DataSet, SplitName, TensorSplit, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.randomness import generator
from mtlkit.tasks import Task

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST_BATCH = "test_batch"
_PADDING = 4


@register_dataset("cifar10")
class Cifar10(DataSet):
    """Each class is a task, "is it a cat?", with binary cross-entropy and F1, as in the paper.

    A training image is padded by 4, cropped to 32 x 32 at random and flipped at random; all images are
    standardized per channel by the training images' mean and standard deviation.

    Args:
        data_dir: see :class:`DataSet`.
        seed: decides the validation images and the augmentations.
        val_share: share of the training images kept for validation; 0.2 leaves the paper's 40,000.
        augment: crop and flip the training images.
        train: at most this many training images.
    """

    summary = "CIFAR10 as ten binary tasks, 32 x 32"
    folder = "cifar10"
    layout = (
        "cifar-10-batches-py/{data_batch_1 ... data_batch_5,test_batch}, or these files themselves, "
        "or one .npz with x_train, y_train, x_test, y_test (images N x 32 x 32 x 3, uint8)"
    )
    source = "https://www.cs.toronto.edu/~kriz/cifar.html (python version)"
    default_architecture = "paper_cifar10(logits=True)"
    input_shape = (3, 32, 32)
    tasks = tuple(Task.binary(name) for name in CLASSES)

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        val_share: float = 0.2,
        augment: bool = True,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self.check_share(val_share)
        self.check_counts(train=train)
        self._val_share = val_share
        self._augment = augment
        self._train = train
        self._mean: Tensor | None = None
        self._std: Tensor | None = None

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Either all batches or one .npz must be there."""
        if _batch_folder(folder) is None and _npz(folder) is None:
            raise cls.missing(folder / "cifar-10-batches-py" / _TRAIN_BATCHES[0])

    def make_split(self, split: SplitName) -> TensorSplit:
        """Read one split; validation is drawn from the training images."""
        images, labels = _read(self, self.open_folder(), "test" if split == "test" else "train")
        if split != "test":
            train, val = self.draw_validation(len(labels), self._val_share)
            if self._train is not None:
                train = generator(self.seed, self.name, "train").permutation(train)[: self._train]
            chosen = train if split == "train" else val
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
        assert self._mean is not None
        assert self._std is not None
        return (images - self._mean) / self._std


def crop_and_flip(
    images: Tensor, targets: Targets, uniform: NDArray[np.float64]
) -> tuple[Tensor, Targets]:
    """Pad by 4, crop at random to the old size, flip half: images (B, C, H, W), uniform (B, 3)."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (_PADDING,) * 4)
    choices = 2 * _PADDING + 1
    top = torch.from_numpy((uniform[:, 0] * choices).astype(np.int64))
    left = torch.from_numpy((uniform[:, 1] * choices).astype(np.int64))
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


def _batch_folder(folder: Path) -> Path | None:
    for candidate in (folder / "cifar-10-batches-py", folder):
        if all((candidate / name).is_file() for name in (*_TRAIN_BATCHES, _TEST_BATCH)):
            return candidate
    return None


def _npz(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.npz"))), None)


def _read(cls: DataSet, folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    batches = _batch_folder(folder)
    if batches is not None:
        names = _TRAIN_BATCHES if part == "train" else (_TEST_BATCH,)
        read = [_read_batch(batches / name) for name in names]
        return np.concatenate([r[0] for r in read]), np.concatenate([r[1] for r in read])
    path = _npz(folder)
    assert path is not None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            images, labels = content[f"x_{part}"], content[f"y_{part}"]
    except KeyError as error:
        raise DataError(f"{path} lacks the array {error}; expected x_{part} and y_{part}") from None
    except Exception as error:  # NumPy raises many kinds of errors for damaged files
        raise DataError(f"cannot read {path}: {error}; fetch it again") from None
    return _check(path, images, labels.reshape(-1))


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(f"cannot read {path} as a CIFAR10 batch: {error!r}; fetch it again") from None
    if not isinstance(content, dict) or b"data" not in content or b"labels" not in content:
        raise DataError(f"{path} is no CIFAR10 batch: it must be a mapping with data and labels")
    flat, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    if flat.ndim != 2 or flat.shape[1] != 3072:
        raise DataError(f"{path}: data is {flat.shape}, expected (N, 3072)")
    return _check(path, flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)


def _check(
    path: Path, images: NDArray[Any], labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) != len(labels):
        raise DataError(
            f"{path}: {len(labels)} labels for images {images.shape} of {images.dtype}; "
            "expected as many uint8 images of 32 x 32 x 3"
        )
    if (
        not np.issubdtype(labels.dtype, np.integer)
        or labels.size == 0
        or labels.min() < 0
        or labels.max() > 9
    ):
        raise DataError(f"{path}: labels must be integers from 0 to 9")
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Unpickles mappings, lists, strings, numbers and NumPy arrays; anything else could run code."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # how protocol 2 stores Python 2 strings
        if (module, name) not in self._ALLOWED:
            raise DataError(
                f"a CIFAR10 batch asks for {module}.{name}; it is refused, as it could run code"
            )
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")
