"""A split of images, read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mtlkit.data.base import Split
from mtlkit.data.collate import Targets
from mtlkit.data.images.files import read_image
from mtlkit.data.images.maps import MapTarget
from mtlkit.data.images.transforms import Augmentation, Sizing


class ImageSplit(Split):
    """Images with their labels, and with the maps that belong to them.

    Args:
        paths: of the images.
        labels: (N, ...) by task, for tasks whose targets are no maps.
        maps: by target, the file of every image; None where it has none.
        sizing: from pixels to inputs.
        augmentation: of training images; None for none.
        seed: of the augmentation.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Targets,
        sizing: Sizing,
        *,
        maps: Mapping[MapTarget, Sequence[Path | None]] | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.paths = paths
        self.labels = labels
        self._maps = dict(maps or {})
        self._sizing = sizing
        self._augmentation = augmentation

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a split with {len(self)} samples")
        index %= len(self)
        image = read_image(self.paths[index], self._sizing.channels)
        size = (image.shape[1], image.shape[2])
        maps = {}
        for target, files in self._maps.items():
            path = files[index]
            maps[target.task] = target.nothing(size) if path is None else target.read(path)
        seed = 0 if self._augmentation is None else int(self.uniform([index], 1)[0, 0] * 2**53)
        inputs, changed = self._sizing(image, maps, self._augmentation, seed)
        targets = {task: label[index] for task, label in self.labels.items()}
        targets |= {target.task: target.finish(changed[target.task]) for target in self._maps}
        return inputs, targets
