"""Rendered rooms: segmentation, depth and normals on any machine, exact and without a download.

A data set of one's own in a file of one's own, which is all that a plugin is::

    mtlkit data "scenes(size=96)" --plugin benchmarks/rooms/scenes.py --preview scenes.png
    mtlkit compare --data benchmarks/rooms/scenes.py:scenes --methods sum,rotograd

The folder of a plugin is one that Python searches, so its files import each other by their names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from room_furniture import furnish
from room_rendering import Floats, render
from torch import Tensor

from mtlkit.data.base import Count, DataSet, SplitName, TensorSplit, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.published.mtan import dense_tasks
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError


@register_dataset("scenes")
class Scenes(DataSet):
    """Rendered rooms with the three tasks and 13 classes of NYUv2.

    Args:
        data_dir: not used, nothing is read from disk.
        seed: decides the rooms; splits never share one.
        size: side of the square images, or (height, width).
        train, val, test: numbers of rooms.
        augment: flip half of the training images.
        noise: standard deviation of the noise on colors.
    """

    summary = "rendered rooms: segmentation (13 classes), depth, normals; any size"
    origin = "rendered"
    default_architecture = "segnet(width=0.25)"
    tasks = dense_tasks()

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        size: int | Sequence[int] = 64,
        train: Count = 400,
        val: Count = 100,
        test: Count = 200,
        augment: bool = True,
        noise: float = 0.02,
    ) -> None:
        super().__init__(data_dir, seed)
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2 or not all(isinstance(side, int) and side >= 8 for side in sides):
            raise SpecError(
                f"option size of {self.name} must be a number of pixels from 8, or (height, width), "
                f"not {size!r}"
            )
        if not 0 <= noise < 1:
            raise SpecError(f"option noise of {self.name} must be from 0 to below 1, not {noise}")
        self._counts = {"train": train, "val": val, "test": test}
        self._augment = augment
        self._noise = noise
        self.input_shape = (3, sides[0], sides[1])

    def make_split(self, split: SplitName) -> TensorSplit:
        """Render all rooms of a split (some milliseconds each at 64 x 64)."""
        _, height, width = self.input_shape
        count = self._counts[split]
        images = torch.empty(count, 3, height, width, dtype=torch.uint8)
        labels = torch.empty(count, height, width, dtype=torch.long)
        depths = torch.empty(count, 1, height, width)
        normals = torch.empty(count, 3, height, width)
        for index in range(count):
            random = generator(self.seed, self.name, split, index)
            room, camera = furnish(random, height, width)
            seen = render(room, camera, random, self._noise)
            images[index] = torch.from_numpy(np.rint(seen.image * 255).astype(np.uint8)).permute(2, 0, 1)
            labels[index] = torch.from_numpy(seen.label)
            depths[index, 0] = torch.from_numpy(seen.depth)
            normals[index] = torch.from_numpy(seen.normal).permute(2, 0, 1)
        targets = {"segmentation": labels, "depth": depths, "normals": normals}
        flipped = split == "train" and self._augment
        return TensorSplit(
            images,
            targets,
            augment=_flip if flipped else None,
            draws=1 if flipped else 0,
            seed=self.seed,
        )


def _flip(images: Tensor, targets: Targets, uniform: Floats) -> tuple[Tensor, Targets]:
    """Mirror half of the images; a mirrored normal points to the other side."""
    chosen = torch.from_numpy(uniform[:, 0] < 0.5)
    mirrored = {name: target.flip(-1) for name, target in targets.items()}
    mirrored["normals"] = mirrored["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    picked = {
        name: torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), mirrored[name], target)
        for name, target in targets.items()
    }
    return torch.where(chosen[:, None, None, None], images.flip(-1), images), picked
