"""The embedded default: two overlapped handwritten digits from scikit-learn, five tasks."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.data.base import SplitName, register_dataset
from mtlkit.data.published.digit_pairs import DigitPairs, Pixels, Source, overlap
from mtlkit.data.randomness import generator, split_indices, split_with_test
from mtlkit.errors import MissingExtraError, SpecError

_SIDE = 16  # a digit of 8 x 8, twice as large
_SHIFT = 6


@register_dataset("multidigits")
class MultiDigits(DigitPairs):
    """Two real handwritten digits (UCI's 1797 digits, as scikit-learn ships them) in one small image.

    20 % of the digits are kept for validation and 20 % for the test; none occurs in two splits.

    Args:
        data_dir: not used, nothing is read from disk.
        seed: decides which digits go to which split, and the pairs.
        train, val, test: numbers of pairs.
        size: side of the image; 22 keeps the digits' resolution, 28 is the size of MNIST.
        pixels: ``standardized`` or ``count`` of active pixels.
        test_seed: keeps the digits for test that this seed has, whatever ``seed`` is.
    """

    summary = "two overlapped handwritten digits (embedded, scikit-learn), 22 x 22; five tasks"

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        train: int = 4000,
        val: int = 1000,
        test: int = 2000,
        size: int = _SIDE + _SHIFT,
        pixels: Pixels = "standardized",
        test_seed: int | None = None,
    ) -> None:
        if size < 8:
            raise SpecError(f"option size of {self.name} must be 8 or more, not {size}")
        self._size = size
        self._test_seed = test_seed
        self.input_shape = (1, size, size)
        super().__init__(data_dir, seed, train=train, val=val, test=test, val_share=0.2, pixels=pixels)

    def digits(self, split: SplitName) -> Source:
        """Digits of 16 x 16: the originals of 8 x 8, twice as large."""
        images, labels = _load_digits()
        shares, random = [self._val_share] * 2, generator(self.seed, self.name, "split")
        if self._test_seed is None:
            parts = split_indices(len(labels), shares, random)
        else:
            held_out = generator(self._test_seed, self.name, "split")
            parts = split_with_test(len(labels), shares, random, held_out)
        chosen = parts[("train", "val", "test").index(split)]
        small = torch.from_numpy(images[chosen])[:, None]
        large = functional.interpolate(small, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        return large[:, 0].mul(255).round().to(torch.uint8).numpy(), labels[chosen]

    def join(self, left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Tensor:
        """Overlap two digits."""
        return overlap(left, right, _SHIFT, self._size)


def _load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("scikit-learn", "table", "data set multidigits") from None
    loaded = load_digits()
    # gray values are 0 to 16
    return (loaded.images / 16).astype(np.float32), loaded.target.astype(np.int64)
