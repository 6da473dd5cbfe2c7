"""Two digits in one image, five tasks: the paper's multi-MNIST on any source of labeled images.

Tasks (appendix C.1.2 of Javaloy and Valera, 2022): class of the left and of the right digit, whether the
product of both is odd, their sum, and the number of pixels above 0.5. The paper's errors on the last
task (0.01 to 0.16) fit a target of unit variance, so the count is standardized by the mean and standard
deviation of the training images; ``pixels=count`` keeps the plain number.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import DataSet, SplitName, TensorSplit
from mtlkit.data.randomness import generator
from mtlkit.tasks import Task

Source: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]
Pixels: TypeAlias = Literal["standardized", "count"]

DIGITS = tuple("0123456789")


class DigitPairs(DataSet):
    """Images of two digits each, from a source of single digits.

    The digits of one split never occur in another. A split has as many pairs as it has digits, every
    digit being once left and once right, unless a number is given; more pairs repeat digits in new
    combinations.

    Args:
        data_dir: see :class:`DataSet`.
        seed: decides which digits go to which split, and the pairs.
        train, val, test: numbers of pairs.
        val_share: share of the training digits that are kept for validation.
        pixels: ``standardized`` or ``count``.
    """

    classes: Sequence[str] = DIGITS
    net = "paper_mnist"

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        train: int | None = None,
        val: int | None = None,
        test: int | None = None,
        val_share: float = 0.1,
        pixels: Pixels = "standardized",
    ) -> None:
        super().__init__(data_dir, seed)
        self.check_counts(train=train, val=val, test=test)
        self.check_share(val_share)
        self._counts = {"train": train, "val": val, "test": test}
        self._val_share = val_share
        self._pixels = pixels
        self.tasks = (
            Task.classification("left", self.classes),
            Task.classification("right", self.classes),
            Task.binary("parity", ("product even", "product odd")),
            Task.regression("digit_sum"),
            Task.regression("pixels"),
        )
        # the paper's net for this data set, at the size of its images
        self.default_architecture = (
            f"{self.net}(input_size={self.input_shape}, binary=[parity], logits=True)"
        )

    @abstractmethod
    def digits(self, split: SplitName) -> Source:
        """Single digits (N, h, w) uint8 and their labels (N,) of a split."""

    @abstractmethod
    def join(self, left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Tensor:
        """Images (N, 1, H, W) uint8 of both digits."""

    def draw_pairs(
        self, sources: int, count: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices of the left and of the right digits: each digit once on either side per round."""
        return _rounds(sources, count, random), _rounds(sources, count, random)

    def make_split(self, split: SplitName) -> TensorSplit:
        """Pair the digits of one split."""
        images, labels = self.digits(split)
        count = self._counts[split]
        random = generator(self.seed, self.name, split)
        left, right = self.draw_pairs(len(labels), count if count is not None else len(labels), random)
        inputs = self.join(images[left], images[right])
        first, second = torch.from_numpy(labels[left]), torch.from_numpy(labels[right])
        # 127.5 / 255 is one half
        active = (inputs > 127).flatten(1).sum(1, dtype=torch.float32)
        targets = {
            "left": first,
            "right": second,
            "parity": (first * second % 2).float()[:, None],
            "digit_sum": (first + second).float()[:, None],
            "pixels": active[:, None],
        }
        made = TensorSplit(inputs, targets, seed=self.seed)
        if self._pixels == "standardized":
            # the statistics are those of the training images, for every split
            if split == "train":
                self._pixel_mean = float(active.mean())
                self._pixel_std = max(float(active.std(correction=0)), 1e-6)
            else:
                _ = self.train
            made.targets["pixels"] = (active[:, None] - self._pixel_mean) / self._pixel_std
        return made


class PublishedDigits(DigitPairs):
    """Pairs of published digits: their test set is the test set, validation is drawn from the others."""

    @abstractmethod
    def read_digits(self, folder: Path, part: Literal["train", "test"]) -> Source:
        """Digits and labels of one published part."""

    def digits(self, split: SplitName) -> Source:
        """Digits and labels of a split."""
        folder = self.open_folder()
        if split == "test":
            return self.read_digits(folder, "test")
        images, labels = self.read_digits(folder, "train")
        train, val = self.draw_validation(len(labels), self._val_share)
        chosen = train if split == "train" else val
        return images[chosen], labels[chosen]


def overlap(
    left: NDArray[np.uint8],
    right: NDArray[np.uint8],
    shift: int,
    size: int,
    *,
    canvas_size: int | None = None,
    smooth: bool = True,
) -> Tensor:
    """Merge two digits into one image: the left one upper left, the right one ``shift`` off.

    Both are drawn on a canvas, by default ``shift`` larger than a digit. The brighter pixel wins, and
    the canvas is resized to ``size``: (N, h, h) twice to (N, 1, size, size). ``smooth`` resizes
    bilinearly, else the nearest pixel is taken.
    """
    count, side, _ = left.shape
    width = side + shift if canvas_size is None else canvas_size
    merged = torch.empty(count, 1, size, size, dtype=torch.uint8)
    for start in range(0, count, 4096):  # in chunks, to bound the memory of the floats
        chunk = slice(start, min(start + 4096, count))
        canvas = torch.zeros(chunk.stop - start, 1, width, width, dtype=torch.uint8)
        canvas[:, 0, :side, :side] = torch.from_numpy(left[chunk])
        lower = canvas[:, 0, shift : shift + side, shift : shift + side]
        torch.maximum(lower, torch.from_numpy(right[chunk]), out=lower)
        if smooth:
            resized = functional.interpolate(
                canvas.float(), size=(size, size), mode="bilinear", antialias=True, align_corners=False
            )
        else:
            resized = functional.interpolate(canvas.float(), size=(size, size), mode="nearest-exact")
        merged[chunk] = resized.round_().clamp_(0, 255).to(torch.uint8)
    return merged


def _rounds(sources: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """``count`` indices: permutations of all sources, one after the other."""
    rounds = -(-count // sources)
    return np.concatenate([random.permutation(sources) for _ in range(rounds)])[:count]
