"""NYUv2 and Cityscapes as MTAN (Liu et al., 2019) prepared them: images with a target per pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlkit.config.annotations import Ge, Lt
from mtlkit.data.base import Count, DataError, DataSet, Split, SplitName, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.files import DataDir, find_first
from mtlkit.data.images.transforms import check_size
from mtlkit.data.readers import Array, find_npz, read_npy, read_npz
from mtlkit.tasks import Task

_INDOOR = "bed books ceiling chair floor furniture objects picture sofa table tv wall window"
INDOOR_CLASSES = tuple(_INDOOR.split())
STREET_CLASSES = ("flat", "construction", "object", "nature", "sky", "human", "vehicle")
_PARTS = ("train", "val")
_SCALES = (1.0, 1.2, 1.5)
_TASKS = {"label": "segmentation", "depth": "depth", "normal": "normals"}


def dense_tasks() -> tuple[Task, ...]:
    """Return segmentation, depth and normals."""
    return (
        Task.segmentation("segmentation", INDOOR_CLASSES),
        Task.depth("depth"),
        Task.normals("normals"),
    )


class MtanDataSet(DataSet):
    """Folders ``train`` and ``val``, each with a folder per kind, with files ``0.npy``, ``1.npy``, ...

    The ``val`` images are the test set here; the validation images are drawn from the training images,
    so that nothing is chosen on the test set.

    Args:
        val_share: fraction of the training images for validation; 0 for none, as in published results.
        augment: scale the training images by 1, 1.2 or 1.5, crop and flip them.
        size: size to resize to: an integer or [height, width]; None keeps the size of the files.
        train: largest number of training images.
    """

    kinds: ClassVar[Mapping[str, Sequence[str]]]
    """Folders that may hold a kind: ``image``, ``label``, ``depth`` and ``normal``."""
    inverse_depth: ClassVar[bool] = False
    """Whether a larger depth is nearer."""
    source = "https://github.com/lorenmt/mtan (see its section on data sets)"

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        val_share: Annotated[float, Ge(0), Lt(1)] = 0.1,
        augment: bool = True,
        size: Count | Sequence[Count] | None = None,
        train: Count | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        self._val_share = val_share
        self._augment = augment
        self._size = check_size(size, self.name)
        self._train = train

    @classmethod
    def check_files(cls, folder: Path) -> None:
        """Raise :class:`DataError` unless MTAN's folders or one .npz file exist."""
        if find_npz(folder) is None:
            wanted = [[f"{part}/{n}" for n in names] for part in _PARTS for names in cls.kinds.values()]
            absent = [folder / names[0] for names in wanted if find_first(folder, names) is None]
            if absent:
                raise cls.missing(*absent)

    @property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]  # the files may come later
        """(3, height, width), from the first image if ``size`` is None."""
        return (3, *(self._size or self.read("train", 0)["label"].shape))

    def make_split(self, split: SplitName) -> Split:
        """Make one split; ``test`` is what MTAN calls val."""
        part = "val" if split == "test" else "train"
        count = len(self._arrays[part]["image"])
        chosen = np.arange(count)
        if split != "test":
            chosen = self.hold_out(split, count, self._val_share, self._train)
        return _Scenes(self, part, chosen, self._size, self._augment and split == "train")

    @cached_property
    def _arrays(self) -> dict[str, dict[str, Sequence[Path] | Array]]:
        """The images by part and kind: files, or arrays of an .npz file."""
        folder = self.open_folder()
        npz = find_npz(folder)
        if npz is not None:
            found = read_npz(npz, [f"{kind}_{part}" for part in _PARTS for kind in self.kinds])
            return {part: {kind: found[f"{kind}_{part}"] for kind in self.kinds} for part in _PARTS}
        return {part: self._list_files(folder / part) for part in _PARTS}

    def _list_files(self, folder: Path) -> dict[str, Sequence[Path] | Array]:
        folders = {kind: find_first(folder, names) or folder for kind, names in self.kinds.items()}
        names = [path.name for path in folders["image"].glob("*.npy")] or ["0.npy"]
        names.sort(key=lambda name: (len(name), name))  # 2.npy before 10.npy
        files = {kind: [held / name for name in names] for kind, held in folders.items()}
        absent = [path for paths in files.values() for path in paths if not path.is_file()]
        if absent:
            raise self.missing(*absent[:3])
        return dict(files)

    def read(self, part: str, index: int) -> dict[str, Array]:
        """Return the checked arrays of an image of ``train`` or ``val`` by kind, in standard types."""
        where, found = f"{part} image {index}", {}
        for kind, held in self._arrays[part].items():
            item = held[index]
            if isinstance(item, Path):
                where, item = str(item.parents[1] / "*" / item.name), read_npy(item)
            found[kind] = item
        return _standard_arrays(found, where, self.tasks[0].outputs or 0)


@register_dataset("nyuv2")
class NyuV2(MtanDataSet):
    """Indoor scenes (Silberman et al., 2012).

    MTAN's 654 ``val`` images are the test set. Scaling a training image divides its depth by the scale,
    and flipping it negates the x component of the normals.
    """

    summary = "NYUv2 indoor scenes: segmentation (13 classes), depth, normals"
    folder = "nyuv2"
    layout = (
        "{train,val}/{image,label,depth,normal}/N.npy (288 x 384 with 3, no, 1 and 3 channels), "
        "or one .npz with image_train, label_train, depth_train, normal_train and the same for _val"
    )
    default_architecture = "segnet"
    kinds = {name: (name,) for name in ("image", "label", "depth", "normal")}
    tasks = dense_tasks()


@register_dataset("cityscapes")
class Cityscapes(MtanDataSet):
    """Street scenes (Cordts et al., 2016).

    The 500 ``val`` images are the test set, and the 2975 others are split. Depth is inverse, the
    disparity of two cameras: larger is nearer, 0 is unknown.

    Args:
        augment: scale the training images by 1, 1.2 or 1.5, crop and flip them; published comparisons do
            not.
        size: size to resize to: an integer or [height, width]; None keeps that of the files (128 x 256).
    """

    summary = "Cityscapes streets: segmentation (7 classes) and inverse depth"
    folder = "cityscapes"
    layout = "{train,val}/{image,label,depth}/N.npy (128 x 256 with 3, no and 1 channels)"
    default_architecture = "segnet(input_size=(128, 256))"
    kinds = {"image": ("image",), "label": ("label", "label_7"), "depth": ("depth",)}
    inverse_depth = True
    tasks = (Task.segmentation("segmentation", STREET_CLASSES), Task.depth("depth"))

    def __init__(
        self, data_dir: DataDir = None, seed: int = 0, *, augment: bool = False, **options: Any
    ) -> None:
        super().__init__(data_dir, seed, augment=augment, **options)


class _Scenes(Split):
    """Images with the targets of all tasks."""

    def __init__(
        self,
        data: MtanDataSet,
        part: str,
        indices: NDArray[np.integer],
        size: tuple[int, int] | None,
        augment: bool,
    ) -> None:
        super().__init__(data.seed)
        self._data = data
        self._part = part
        self._indices = indices
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        index = self.position(index)
        arrays = self._data.read(self._part, int(self._indices[index]))
        image = _channels_first(arrays.pop("image"))
        targets = {_TASKS[kind]: _channels_first(array) for kind, array in arrays.items()}
        targets["depth"] = targets["depth"][None]
        if self._size is not None and self._size != tuple(image.shape[1:]):
            image, targets = _resize(image, targets, self._size)
        if self._augment:
            uniform = self.uniform([index], 4)[0]
            return scale_crop_flip(image, targets, uniform, inverse_depth=self._data.inverse_depth)
        return image, targets


def scale_crop_flip(
    image: Tensor, targets: Targets, uniform: NDArray[np.float64], *, inverse_depth: bool = False
) -> tuple[Tensor, Targets]:
    """Augment one image (3, H, W) as MTAN does, by four random numbers in [0, 1).

    The image is scaled by 1, 1.2 or 1.5 and cropped; depth is divided by the scale, and inverse depth
    multiplied. Half of the images are flipped, and the x component of their normals is negated.
    """
    height, width = image.shape[1:]
    scale = _SCALES[int(uniform[0] * len(_SCALES))]
    crop_height, crop_width = int(height / scale), int(width / scale)
    top = int(uniform[1] * (height - crop_height + 1))
    left = int(uniform[2] * (width - crop_width + 1))
    window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
    image, targets = _resize(
        image[window], {name: target[window] for name, target in targets.items()}, (height, width)
    )
    targets["depth"] = targets["depth"] * scale if inverse_depth else targets["depth"] / scale
    if uniform[3] < 0.5:
        image = image.flip(-1)
        targets = {name: target.flip(-1) for name, target in targets.items()}
        if "normals" in targets:
            targets["normals"] = targets["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    return image, targets


def _resize(image: Tensor, targets: Targets, size: tuple[int, int]) -> tuple[Tensor, Targets]:
    """Resize the image bilinearly, and the targets, which have unknown pixels, by nearest neighbor."""
    resized = functional.interpolate(image[None], size=size, mode="bilinear", align_corners=True)[0]
    changed = {}
    for name, target in targets.items():
        maps = target[None, None].float() if name == "segmentation" else target[None]
        nearest = functional.interpolate(maps, size=size, mode="nearest")[0]
        changed[name] = nearest[0].long() if name == "segmentation" else nearest
    return resized, changed


def _channels_first(array: Array) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.permute(2, 0, 1).contiguous() if tensor.dim() == 3 else tensor


def _standard_arrays(found: Mapping[str, Array], where: str, classes: int) -> dict[str, Array]:
    """Check the shapes, and return images in [0, 1], int64 labels, depths and unit normals."""
    squeezed = dict(found)
    if squeezed["depth"].ndim == 3:
        squeezed["depth"] = squeezed["depth"][..., 0]
    size = squeezed["image"].shape[:2]
    wanted = {"image": (*size, 3), "label": size, "depth": size, "normal": (*size, 3)}
    is_numeric = all(array.dtype.kind in "fiu" for array in found.values())
    if 0 in size or not is_numeric or any(a.shape != wanted[kind] for kind, a in squeezed.items()):
        given = ", ".join(f"{kind} {array.shape} of {array.dtype}" for kind, array in found.items())
        raise DataError(f"{where}: shapes do not fit, or not numbers: {given}")
    labels = np.nan_to_num(squeezed["label"], nan=-1.0)
    if labels.max() >= classes or labels.min() < -1:
        raise DataError(f"{where}: labels must be -1 (unknown) to {classes - 1}")
    with np.errstate(over="ignore"):
        standard = {kind: array.astype(np.float32) for kind, array in squeezed.items()}
    if any(np.isinf(array).any() for array in standard.values()):
        raise DataError(f"{where}: numbers are infinite or too large; download the file again")
    if found["image"].dtype == np.uint8:
        standard["image"] /= 255
    if "normal" in found and found["normal"].dtype == np.int8:
        # after rounding to bytes, lengths differ slightly from one; zero vectors are unknown
        length = np.linalg.norm(standard["normal"], axis=-1, keepdims=True)
        standard["normal"] /= np.maximum(length, 1)
    standard["depth"] = np.nan_to_num(standard["depth"], nan=0.0)
    return {**standard, "label": labels.astype(np.int64)}
