"""CelebA: forty binary attributes of a face."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from mtlkit.config.annotations import Ge
from mtlkit.data.base import SPLITS, Count, DataSet, Split, SplitName, TensorSplit, register_dataset
from mtlkit.data.files import DataDir, reading
from mtlkit.data.images.dataset import ImageSplit
from mtlkit.data.images.transforms import Sizing
from mtlkit.tasks import Task

_NAMES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose "
    "Black_Hair Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee "
    "Gray_Hair Heavy_Makeup High_Cheekbones Male Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard "
    "Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks Sideburns Smiling Straight_Hair "
    "Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young"
)
ATTRIBUTES = tuple(_NAMES.split())
_IMAGES = "img_align_celeba"
_ATTRIBUTES = "list_attr_celeba.txt"
_PARTITION = "list_eval_partition.txt"


@register_dataset("celeba")
class CelebA(DataSet):
    """Aligned faces, resized to 64 x 64, with the published split; each attribute is a binary task.

    Args:
        size: side of the images.
        preload: keep all images of a split in memory (2 GB for training at 64 x 64), which is faster.
        train: largest number of training images.
    """

    summary = "CelebA faces with forty binary attributes, 64 x 64"
    folder = "celeba"
    layout = f"{_IMAGES}/*.jpg, {_ATTRIBUTES}, {_PARTITION}"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
    needed = [(_IMAGES,), (_ATTRIBUTES,), (_PARTITION,)]
    tasks = tuple(Task.binary(name) for name in ATTRIBUTES)

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        size: Annotated[int, Ge(8)] = 64,
        preload: bool = False,
        train: Count | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self._preload = preload
        self._train = train
        self._sizing = Sizing((size, size), "stretch", 3, mean=(0.0,) * 3, std=(1.0,) * 3)
        self.input_shape = (3, size, size)
        self.default_architecture = f"paper_celeba(input_size={self.input_shape}, logits=True)"

    def make_split(self, split: SplitName) -> Split:
        """Return the images of one part of the published split."""
        folder, names, attributes = self._lists[split]
        if split == "train":
            chosen = self.draw_train(np.arange(len(names)), self._train)
            names, attributes = [names[index] for index in chosen], attributes[chosen]
        paths = [folder / name for name in names]
        absent = [path for path in paths if not path.is_file()]
        if absent or not paths:
            raise self.missing(*(absent[:3] or [folder / f"images of the {split} part of {_PARTITION}"]))
        answers = torch.from_numpy(attributes)
        labels = {name: answers[:, [index]] for index, name in enumerate(ATTRIBUTES)}
        images = ImageSplit(paths, labels, self._sizing, seed=self.seed)
        if not self._preload:
            return images
        pixels = [image.mul(255).round().to(torch.uint8) for image, _ in images]
        return TensorSplit(torch.stack(pixels), labels, seed=self.seed)

    @cached_property
    def _lists(self) -> dict[SplitName, tuple[Path, list[str], NDArray[np.float32]]]:
        """Folder, names and attributes (N, 40) in {0, 1} of the images of each split.

        The attribute file has the number of images, the names of the attributes, and a line per image
        with -1 or 1; the partition file has a line per image with 0 (train), 1 (val) or 2 (test).
        """
        folder = self.open_folder()
        attributes: dict[str, NDArray[np.float32]] = {}
        with reading(folder / _ATTRIBUTES):
            count, header, *lines = (folder / _ATTRIBUTES).read_text("utf-8").splitlines()
            if tuple(header.split()) != ATTRIBUTES:
                raise ValueError(f"the second line must name {ATTRIBUTES[0]} to {ATTRIBUTES[-1]}")
            for name, *values in filter(None, map(str.split, lines)):
                if len(values) != len(ATTRIBUTES) or not set(values) <= {"-1", "1"}:
                    raise ValueError(f"the line of {name} must have {len(ATTRIBUTES)} values of -1 or 1")
                attributes[name] = np.array([value == "1" for value in values], dtype=np.float32)
            if count.strip() != str(len(attributes)):
                raise ValueError(f"its header says {count} images, but it has {len(attributes)}")
        chosen: dict[SplitName, list[str]] = {split: [] for split in SPLITS}
        with reading(folder / _PARTITION):
            for line in (folder / _PARTITION).read_text("utf-8").splitlines():
                name, part = line.split()
                if name not in attributes or part not in ("0", "1", "2"):
                    raise ValueError(f"expected a name of {_ATTRIBUTES} and 0, 1 or 2, not {line!r}")
                chosen[SPLITS[int(part)]].append(name)
        return {
            split: (folder / _IMAGES, names, np.array([attributes[name] for name in names]))
            for split, names in chosen.items()
        }
