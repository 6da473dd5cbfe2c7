"""CelebA: forty yes-or-no attributes of a face."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataError, DataSet, Split, SplitName, TensorSplit, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.images.files import import_pillow
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError
from mtlkit.tasks import Task

_IMAGES = "img_align_celeba"
_ATTRIBUTES = "list_attr_celeba.txt"
_PARTITION = "list_eval_partition.txt"
_CODES: dict[SplitName, int] = {"train": 0, "val": 1, "test": 2}

ATTRIBUTES = (
    "5_o_Clock_Shadow",
    "Arched_Eyebrows",
    "Attractive",
    "Bags_Under_Eyes",
    "Bald",
    "Bangs",
    "Big_Lips",
    "Big_Nose",
    "Black_Hair",
    "Blond_Hair",
    "Blurry",
    "Brown_Hair",
    "Bushy_Eyebrows",
    "Chubby",
    "Double_Chin",
    "Eyeglasses",
    "Goatee",
    "Gray_Hair",
    "Heavy_Makeup",
    "High_Cheekbones",
    "Male",
    "Mouth_Slightly_Open",
    "Mustache",
    "Narrow_Eyes",
    "No_Beard",
    "Oval_Face",
    "Pale_Skin",
    "Pointy_Nose",
    "Receding_Hairline",
    "Rosy_Cheeks",
    "Sideburns",
    "Smiling",
    "Straight_Hair",
    "Wavy_Hair",
    "Wearing_Earrings",
    "Wearing_Hat",
    "Wearing_Lipstick",
    "Wearing_Necklace",
    "Wearing_Necktie",
    "Young",
)


@register_dataset("celeba")
class CelebA(DataSet):
    """Aligned faces, resized to 64 x 64, with the published split; each attribute is a binary task.

    Args:
        data_dir: see :class:`DataSet`.
        seed: decides which images ``train`` picks.
        size: side of the images.
        preload: keep all images of a split in memory (2 GB for training at 64 x 64), which is faster.
        train: at most this many training images.
    """

    summary = "CelebA faces with forty binary attributes, 64 x 64"
    folder = "celeba"
    layout = f"{_IMAGES}/*.jpg, {_ATTRIBUTES}, {_PARTITION}"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
    tasks = tuple(Task.binary(name) for name in ATTRIBUTES)

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        size: int = 64,
        preload: bool = False,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        if size < 8:
            raise SpecError(f"option size of {self.name} must be 8 or more, not {size}")
        self.check_counts(train=train)
        self._preload = preload
        self._train = train
        self.input_shape = (3, size, size)
        self.default_architecture = f"paper_celeba(input_size={self.input_shape}, logits=True)"
        self._table: dict[SplitName, tuple[list[Path], NDArray[np.float32]]] | None = None

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """The folder of images and both lists must be there."""
        absent = [folder / name for name in (_ATTRIBUTES, _PARTITION) if not (folder / name).is_file()]
        if not (folder / _IMAGES).is_dir():
            absent.insert(0, folder / _IMAGES)
        if absent:
            raise cls.missing(*absent)

    def make_split(self, split: SplitName) -> Split:
        """Images of one part of the published partition."""
        if self._table is None:
            self._table = _read_lists(self.open_folder())
        paths, attributes = self._table[split]
        if split == "train" and self._train is not None:
            random = generator(self.seed, self.name, "train")
            order = random.permutation(len(paths))[: self._train]
            paths, attributes = [paths[index] for index in order], attributes[order]
        if not paths:
            raise DataError(f"data set {self.name}: no images in the {split} part of {_PARTITION}")
        labels = torch.from_numpy(attributes)
        made = _Faces(paths, labels, self.input_shape[-1], self.seed)
        if not self._preload:
            return made
        images = torch.stack([made.pixels(index) for index in range(len(made))])
        targets = {name: labels[:, index : index + 1] for index, name in enumerate(ATTRIBUTES)}
        return TensorSplit(images, targets, seed=self.seed)


class _Faces(Split):
    """Images read when they are asked for."""

    def __init__(self, paths: list[Path], labels: Tensor, size: int, seed: int) -> None:
        super().__init__(seed)
        self._paths = paths
        self._labels = labels
        self._size = size

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        row = self._labels[index]  # raises IndexError past the end
        targets = {name: row[position : position + 1] for position, name in enumerate(ATTRIBUTES)}
        return self.pixels(index).float().div_(255), targets

    def pixels(self, index: int) -> Tensor:
        """One image as (3, size, size) uint8."""
        image_module = import_pillow()
        path = self._paths[index]
        try:
            with image_module.open(path) as image:
                resized = image.convert("RGB").resize(
                    (self._size, self._size), image_module.Resampling.BILINEAR
                )
        except FileNotFoundError:
            raise CelebA.missing(path) from None
        except Exception as error:  # Pillow raises many kinds of errors for damaged files
            raise DataError(f"cannot read the image {path}: {error}; fetch it again") from None
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def _read_lists(folder: Path) -> dict[SplitName, tuple[list[Path], NDArray[np.float32]]]:
    """Image paths and attributes (N, 40) in {0, 1} of each part.

    The attribute file has the number of images, the names, then a line per image with -1 or 1; the
    partition file a line per image with 0 (train), 1 (validation) or 2 (test).
    """
    attribute_path, partition_path = folder / _ATTRIBUTES, folder / _PARTITION
    lines = attribute_path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) < 3 or tuple(lines[1].split()) != ATTRIBUTES:
        raise DataError(
            f"{attribute_path}: the second line must name CelebA's 40 attributes, from "
            f"{ATTRIBUTES[0]} to {ATTRIBUTES[-1]}"
        )
    attributes: dict[str, NDArray[np.float32]] = {}
    for number, line in enumerate(lines[2:], start=3):
        name, *values = line.split() or [""]
        if not name:
            continue
        if len(values) != len(ATTRIBUTES) or not set(values) <= {"-1", "1"}:
            raise DataError(
                f"{attribute_path}, line {number}: expected an image name and "
                f"{len(ATTRIBUTES)} values of -1 or 1"
            )
        attributes[name] = np.array([value == "1" for value in values], dtype=np.float32)
    if lines[0].strip() != str(len(attributes)):
        raise DataError(
            f"{attribute_path} promises {lines[0].strip()} images and lists {len(attributes)}; "
            "it is cut short, fetch it again"
        )
    chosen: dict[SplitName, list[str]] = {split: [] for split in _CODES}
    parts = {str(code): split for split, code in _CODES.items()}
    partition = partition_path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(partition, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in parts:
            raise DataError(f"{partition_path}, line {number}: expected an image name and 0, 1 or 2")
        if words[0] not in attributes:
            raise DataError(f"{partition_path}, line {number}: {words[0]} is not in {_ATTRIBUTES}")
        chosen[parts[words[1]]].append(words[0])
    return {
        split: (
            [folder / _IMAGES / name for name in names],
            np.stack([attributes[name] for name in names])
            if names
            else np.zeros((0, len(ATTRIBUTES)), dtype=np.float32),
        )
        for split, names in chosen.items()
    }
